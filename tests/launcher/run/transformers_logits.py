"""For each model folder named: transformers' logits of the token ids 0 .. 15, as raw fp32 in FOLDER/logits.f32.

Fails where a weight is missing, unexpected or of another shape.
"""
import sys

import torch
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
for folder in sys.argv[1:]:
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    faults = {key: value for key, value in info.items() if value}
    assert not faults, (folder, faults)
    with torch.no_grad():
        logits = model.eval()(torch.arange(16).reshape(1, 16), use_cache=False).logits
    logits.contiguous().numpy().tofile(folder + "/logits.f32")
