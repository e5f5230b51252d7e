#!/usr/bin/env python3
"""The peer of several ranks from PyTorch itself: FSDP2 over Gloo, parameters sharded and gathered block by block.

    torchrun --standalone --nproc-per-node 2 train_fsdp2.py MODEL TOKENS METRICS --threads 1 [--checkpointing]

Each decoder layer is a unit of its own, so are the embedding and the head (with the last norm), as in torchtitan: a unit
around them all would keep both gathered through the whole step. Rows and METRICS: loop.py.
"""

import loop
import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl, apply_activation_checkpointing, checkpoint_wrapper)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.models.llama.modeling_llama import LlamaDecoderLayer


def shard(arguments, model):
    if arguments.checkpointing:
        apply_activation_checkpointing(
            model, check_fn=lambda module: isinstance(module, LlamaDecoderLayer),
            checkpoint_wrapper_fn=lambda layer: checkpoint_wrapper(layer, checkpoint_impl=CheckpointImpl.NO_REENTRANT))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for unit in (model.model.embed_tokens, *model.model.layers, [model.model.norm, model.lm_head], model):
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)


def make_step(arguments, model):
    """A function that trains on this rank's rows of step k and returns the loss of all ranks."""
    rows = loop.Rows(arguments, dist.get_rank(), dist.get_world_size())
    optimizer = torch.optim.AdamW(model.parameters(), **loop.ADAMW)

    def step(k):
        ids = rows(k)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), loop.MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loop.mean_over_ranks(loss)

    return step


def main():
    arguments = loop.make_parser(__doc__).parse_args()
    torch.set_num_threads(arguments.threads)
    dist.init_process_group("gloo")
    base = loop.largest_over_ranks(loop.resident_bytes())
    model = loop.load_model(arguments)
    shard(arguments, model)
    loop.run(arguments, make_step(arguments, model), base, dist.get_rank())
    loop.leave()


if __name__ == "__main__":
    main()
