#!/usr/bin/env python3
"""Makes models/mistral-window and models/qwen2-window: tiny decoders with sliding windows, and their answers.

    python3 -m venv v && v/bin/pip install torch==2.11.0 transformers==5.24.0 safetensors
    v/bin/python tests/data/make_windows.py

The answers are those of the other folders in models/, computed by eager attention in fp32 on one thread.
"""
import json
import os
import shutil

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, MistralConfig, Qwen2Config

SHAPE = dict(vocab_size=96, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=48, max_position_embeddings=128, rms_norm_eps=1e-6, tie_word_embeddings=False,
             bos_token_id=1, eos_token_id=2, pad_token_id=None, sliding_window=5)
CONFIGS = {
    "mistral-window": MistralConfig(**SHAPE),  # every layer
    "qwen2-window": Qwen2Config(**SHAPE, use_sliding_window=True, max_window_layers=1),  # the last two layers
}


def randomise(model, generator):
    with torch.no_grad():
        for name, p in model.named_parameters():
            r = torch.randn(p.shape, generator=generator)
            p.copy_(1 + 0.2 * r if name.endswith("norm.weight") else 0.15 * r)


def make(name, config, seed):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models", name)
    shutil.rmtree(path, ignore_errors=True)
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    randomise(model, generator)
    model.save_pretrained(path)
    generation = os.path.join(path, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)
    ids = torch.randint(0, config.vocab_size, (2, 17), generator=generator)
    labels = ids.clone()
    labels[0, :4] = -100
    labels[1, 7] = -100

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    whole = model(input_ids=ids, labels=labels, use_cache=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False)
    answers = {"input_ids": ids, "labels": labels}
    losses, norms = [], []
    for step in range(3):
        optimizer.zero_grad()
        out = model(input_ids=ids, labels=labels, use_cache=False)
        out.loss.backward()
        if step == 0:
            answers["logits"], answers["loss"] = out.logits.detach().clone(), out.loss.detach().reshape(1)
            answers.update({"grad." + n: p.grad.clone() for n, p in model.named_parameters()})
        losses.append(out.loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
    answers["losses"], answers["grad_norms"] = torch.stack(losses), torch.stack(norms).float()
    answers.update({"step3." + n: p.detach().clone() for n, p in model.named_parameters()})

    # The window changes what follows it and nothing before.
    settings = json.loads(config.to_json_string())
    settings.update(sliding_window=None, use_sliding_window=False, layer_types=None)
    blind = AutoModelForCausalLM.from_pretrained(path, config=type(config)(**settings), attn_implementation="eager").eval()
    far = (blind(ids, use_cache=False).logits - whole.logits).abs().amax((0, 2))
    assert far[:5].max() == 0 and far[5:].min() > 1e-3, far
    save_file({k: v.contiguous() for k, v in answers.items()}, os.path.join(path, "golden.safetensors"))
    for file in os.listdir(path):
        os.chmod(os.path.join(path, file), 0o644)
    print(name, transformers.__version__, torch.__version__, [float(x) for x in losses])


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for number, (name, config) in enumerate(CONFIGS.items()):
        make(name, config, 7000 + number)
