#!/usr/bin/env python3
"""The peer: a plain PyTorch loop around transformers' LlamaForCausalLM, as its users write it.

    train_llama.py MODEL TOKENS METRICS --steps 10 [--bf16] [--checkpointing] [--profile]

SDPA attention, fused AdamW, clipping at 1.0. Step k trains on rows k * B ... k * B + B - 1 of the token file. METRICS
gets one JSON object a step, written at the step's end: step, loss, step_time_s, base_rss_bytes (what the process held
before the model).
"""

import argparse
import json
import time

import numpy as np
import torch
import torch._dynamo  # the first checkpoint imports it: counted as held before the model, like the rest of the libraries
from transformers import LlamaForCausalLM


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def load_model(arguments):
    model = LlamaForCausalLM.from_pretrained(arguments.model, dtype=torch.float32, attn_implementation="sdpa")
    model.config.use_cache = False
    if arguments.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def make_step(arguments, model):
    """A function that trains on the rows of step k and returns their loss."""
    rows = np.fromfile(arguments.tokens, dtype=np.uint16)
    rows = rows[: len(rows) // arguments.sequence_length * arguments.sequence_length].astype(np.int64)
    rows = torch.from_numpy(rows.reshape(-1, arguments.sequence_length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)

    def step(k):
        ids = rows[k * arguments.batch_size: (k + 1) * arguments.batch_size]
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        value = loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return value

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "tokens", "metrics"):
        parser.add_argument(name)
    for name, value in (("steps", 10), ("batch-size", 2), ("sequence-length", 512), ("threads", 2)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--bf16", action="store_true", help="autocast over fp32 weights")
    parser.add_argument("--checkpointing", action="store_true", help="recompute each decoder layer in the backward")
    parser.add_argument("--profile", action="store_true", help="print where the time of one more step goes")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    base = resident_bytes()
    step = make_step(arguments, load_model(arguments))
    with open(arguments.metrics, "w", encoding="ascii") as metrics:
        for k in range(arguments.steps):
            begin = time.perf_counter()
            loss = step(k)
            record = {"step": k + 1, "loss": loss, "step_time_s": time.perf_counter() - begin, "base_rss_bytes": base}
            print(json.dumps(record), file=metrics, flush=True)
    if arguments.profile:
        with torch.profiler.profile() as profile:
            step(arguments.steps)
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=10, max_name_column_width=40))


if __name__ == "__main__":
    main()
