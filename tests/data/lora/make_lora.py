#!/usr/bin/env python3
"""PEFT adapters of the tiny models, with logits, merged logits and adapter gradients.

Writes beside itself, for each name, adapter_config.json, adapter_model.safetensors and golden.safetensors.
    python3 -m venv v && v/bin/pip install torch==2.11.0 transformers==5.24.0 peft==0.21.2
    v/bin/python tests/data/lora/make_lora.py [NAME ...]
"""
import json
import os
import shutil
import sys

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
ADAPTERS = {  # base, seed, options
    "llama-tiny-qv": ("llama-tiny", 2000, dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
    "llama-tiny-rslora": ("llama-tiny", 2001, dict(r=4, lora_alpha=8, target_modules="all-linear", use_rslora=True)),
    "gpt2-tiny-patterns": ("gpt2-tiny", 2002, dict(
        r=4, lora_alpha=8, target_modules="all-linear", fan_in_fan_out=True,
        rank_pattern={"c_attn": 2, "h.1.mlp.c_fc": 6}, alpha_pattern={"attn.c_proj": 3.5})),
}


def base(name):
    path = os.path.join(HERE, "..", "models", name)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def make(name, model_name, seed, options):
    path = os.path.join(HERE, name)
    shutil.rmtree(path, ignore_errors=True)
    gold = load_file(os.path.join(HERE, "..", "models", model_name, "golden.safetensors"))
    ids, labels = gold["input_ids"], gold["labels"]
    model = get_peft_model(base(model_name), LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, bias="none", **options))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_" in parameter_name:  # B begins as zeros, which would hide everything
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    model.save_pretrained(path)
    if os.path.exists(os.path.join(path, "README.md")):
        os.remove(os.path.join(path, "README.md"))
    config_path = os.path.join(path, "adapter_config.json")
    with open(config_path) as file:
        config = json.load(file)
    config["base_model_name_or_path"] = f"../../models/{model_name}"
    config["target_modules"] = sorted(config["target_modules"])  # PEFT writes a set, in any order
    with open(config_path, "w") as file:
        json.dump(config, file, indent=2, sort_keys=True)
        file.write("\n")

    model = PeftModel.from_pretrained(base(model_name), path, is_trainable=True).eval()
    out = model(input_ids=ids, labels=labels, use_cache=False)
    out.loss.backward()
    tensors = {"input_ids": ids, "labels": labels, "logits": out.logits.detach(), "loss": out.loss.detach().reshape(1)}
    for parameter_name, parameter in model.named_parameters():
        assert parameter.requires_grad == ("lora_" in parameter_name)
        if parameter.grad is not None:
            tensors["grad." + parameter_name.replace(".default.", ".")] = parameter.grad.clone()
    merged = model.merge_and_unload()
    with torch.no_grad():
        tensors["merged_logits"] = merged(input_ids=ids, use_cache=False).logits
    for weight_name, weight in merged.named_parameters():
        if weight_name.endswith((".0.self_attn.q_proj.weight", ".0.attn.c_attn.weight")):
            tensors["merged." + weight_name] = weight.detach()
    save_file({key: value.contiguous() for key, value in tensors.items()}, os.path.join(path, "golden.safetensors"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for wanted in sys.argv[1:] or ADAPTERS:
        make(wanted, *ADAPTERS[wanted])
