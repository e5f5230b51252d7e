#!/usr/bin/env python3
"""The peer of several ranks from DeepSpeed: ZeRO-1, 2 and 3 on its CPU accelerator over Gloo.

    torchrun --standalone --nproc-per-node 2 train_deepspeed.py MODEL TOKENS METRICS --threads 1 --zero 3 --bucket 4000000

--bucket bounds its buffers, and for stage 3 the parameters that it keeps gathered; the defaults are made for much larger
models, and cost memory here. AdamW is PyTorch's fused one. Rows and METRICS: loop.py.
"""

import os

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))

import deepspeed  # noqa: E402  reads the variables above
import loop  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def make_config(arguments):
    """What is not named here is DeepSpeed's default."""
    zero = {"stage": arguments.zero, "reduce_bucket_size": arguments.bucket}
    if arguments.zero < 3:
        zero["allgather_bucket_size"] = arguments.bucket
    else:
        zero["stage3_prefetch_bucket_size"] = zero["stage3_max_live_parameters"] = arguments.bucket
    return {"train_micro_batch_size_per_gpu": arguments.batch_size, "gradient_clipping": loop.MAX_GRAD_NORM,
            "zero_optimization": zero, "zero_allow_untested_optimizer": False, "steps_per_print": 10**9}


def make_step(arguments, engine):
    """A function that trains on this rank's rows of step k and returns the loss of all ranks."""
    rows = loop.Rows(arguments, dist.get_rank(), dist.get_world_size())

    def step(k):
        ids = rows(k)
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        return loop.mean_over_ranks(loss)

    return step


def main():
    parser = loop.make_parser(__doc__)
    parser.add_argument("--zero", type=int, choices=(1, 2, 3), default=3)
    parser.add_argument("--bucket", type=int, default=4_000_000, help="elements")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    deepspeed.init_distributed("gloo", verbose=False)
    base = loop.largest_over_ranks(loop.resident_bytes())
    model = loop.load_model(arguments)
    if arguments.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), **loop.ADAMW)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=make_config(arguments))
    torch.set_num_threads(arguments.threads)  # initialize sets its own number
    loop.run(arguments, make_step(arguments, engine), base, dist.get_rank())
    loop.leave()


if __name__ == "__main__":
    main()
