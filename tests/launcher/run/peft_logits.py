"""For each BASE ADAPTER pair: PEFT's logits of the token ids 0 .. 15, as raw fp32 in ADAPTER/logits.f32.

Fails where an adapter's tensor is missing or unexpected.
"""
import sys

import torch
from peft import PeftModel
from peft.utils import load_peft_weights, set_peft_model_state_dict
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
for base, adapter in zip(sys.argv[1::2], sys.argv[2::2]):
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    faults = set_peft_model_state_dict(model, load_peft_weights(adapter))
    assert not faults.unexpected_keys, faults
    assert not [key for key in faults.missing_keys if "lora_" in key], faults
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.arange(16).reshape(1, 16), use_cache=False).logits
    logits.contiguous().numpy().tofile(adapter + "/logits.f32")
