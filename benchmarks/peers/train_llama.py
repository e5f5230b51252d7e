#!/usr/bin/env python3
"""The peer of one process: a plain PyTorch loop around transformers' LlamaForCausalLM, as its users write it.

    train_llama.py MODEL TOKENS METRICS --steps 10 [--bf16] [--checkpointing] [--profile]

SDPA attention, fused AdamW, clipping at 1.0. Rows and METRICS: loop.py.
"""

import loop
import torch


def make_step(arguments, model):
    """A function that trains on the rows of step k and returns their loss."""
    rows = loop.Rows(arguments)
    optimizer = torch.optim.AdamW(model.parameters(), **loop.ADAMW)

    def step(k):
        ids = rows(k)
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        value = loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), loop.MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return value

    return step


def main():
    parser = loop.make_parser(__doc__)
    parser.add_argument("--bf16", action="store_true", help="autocast over fp32 weights")
    parser.add_argument("--profile", action="store_true", help="print where the time of one more step goes")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    base = loop.resident_bytes()
    model = loop.load_model(arguments)
    if arguments.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    step = make_step(arguments, model)
    loop.run(arguments, step, base)
    if arguments.profile:
        with torch.profiler.profile() as profile:
            step(arguments.steps)
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=10, max_name_column_width=40))


if __name__ == "__main__":
    main()
