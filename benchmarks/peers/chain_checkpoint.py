#!/usr/bin/env python3
"""The peer of the budget's benchmark: PyTorch's checkpoint_sequential on a chain of Linear and GELU.

    chain_checkpoint.py --depth 64 --width 512 --batch 2048 --segments 8 --steps 6 --threads 2

A step is a forward and a backward, without an update. Before it gradients are set to zero in their place, and not timed;
with --drop-gradients they are given up instead, as zero_grad() does. Prints one JSON object: step_times_s, peak_bytes
(VmHWM of the steps), held_bytes (resident before them: libraries, model, batch, gradients unless they are dropped).
"""

import argparse
import json
import time

import torch
from torch.utils.checkpoint import checkpoint_sequential


def status_bytes(field):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))


def forget_peak():
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("depth", 64), ("width", 512), ("batch", 2048), ("segments", 8), ("steps", 6), ("threads", 2)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--drop-gradients", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(a.width, a.width), torch.nn.GELU())
                                  for _ in range(a.depth)))
    x = torch.randn(a.batch, a.width)
    # The first checkpoint imports a lot: held before the steps, like the rest of the libraries.
    checkpoint_sequential(model, 2, x[:1], use_reentrant=False).sum().backward()
    model.zero_grad(set_to_none=a.drop_gradients)
    held = status_bytes("VmRSS")
    forget_peak()
    times = []
    for _ in range(a.steps):
        model.zero_grad(set_to_none=a.drop_gradients)
        begin = time.perf_counter()
        checkpoint_sequential(model, a.segments, x, use_reentrant=False).square().mean().backward()
        times.append(time.perf_counter() - begin)
    print(json.dumps({"step_times_s": times, "peak_bytes": status_bytes("VmHWM"), "held_bytes": held}))


if __name__ == "__main__":
    main()
