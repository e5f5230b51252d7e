"""What the peers share: arguments, the model, the rows of a rank, the loop that writes a line a step.

Step k of N ranks trains on rows (k * N + rank) * B ... + B - 1 of the token file. METRICS gets one JSON object a step,
written by rank 0 at the step's end: step, loss (the mean over ranks), step_time_s, base_rss_bytes (what a rank held
before the model, where ranks differ the most).
"""

import argparse
import json
import os
import time

import numpy as np
import torch
import torch._dynamo  # the first checkpoint imports it: counted as held before the model, like the rest of the libraries
import torch.distributed as dist
from transformers import LlamaForCausalLM

ADAMW = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "fused": True}
MAX_GRAD_NORM = 1.0


def make_parser(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "tokens", "metrics"):
        parser.add_argument(name)
    for name, value in (("steps", 10), ("batch-size", 2), ("sequence-length", 512), ("threads", 2)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--checkpointing", action="store_true", help="recompute each decoder layer in the backward")
    return parser


def load_model(arguments):
    model = LlamaForCausalLM.from_pretrained(arguments.model, dtype=torch.float32, attn_implementation="sdpa")
    model.config.use_cache = False
    return model.train()


class Rows:
    """rows(k): the token ids that this rank trains on in step k, [batch size, sequence length]."""

    def __init__(self, arguments, rank=0, ranks=1):
        rows = np.fromfile(arguments.tokens, dtype=np.uint16)
        rows = rows[: len(rows) // arguments.sequence_length * arguments.sequence_length].astype(np.int64)
        self.rows = torch.from_numpy(rows.reshape(-1, arguments.sequence_length))
        self.size, self.rank, self.ranks = arguments.batch_size, rank, ranks

    def __call__(self, k):
        first = (k * self.ranks + self.rank) * self.size
        return self.rows[first: first + self.size]


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def largest_over_ranks(value):
    largest = torch.tensor(value)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.item()


def mean_over_ranks(loss):
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def run(arguments, step, base, rank=0):
    """Calls step(k), which trains and returns the loss, for each step."""
    with open(arguments.metrics if rank == 0 else os.devnull, "w", encoding="ascii") as metrics:
        for k in range(arguments.steps):
            begin = time.perf_counter()
            loss = step(k)
            record = {"step": k + 1, "loss": loss, "step_time_s": time.perf_counter() - begin, "base_rss_bytes": base}
            print(json.dumps(record), file=metrics, flush=True)


def leave():
    """Ends a rank at once: threads of Gloo and DeepSpeed can abort while Python takes itself apart."""
    dist.barrier()
    os._exit(0)
