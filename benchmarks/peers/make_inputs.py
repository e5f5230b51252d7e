#!/usr/bin/env python3
"""What both programs of the comparison start from: OUT/tokens.bin and OUT/model, each from a fixed seed.

The model is a Hugging Face folder that transformers itself initialises and writes; the tokens are uint16 and follow a
random walk in which each token has four likely successors, so that a model can learn a little from them.
"""

import argparse
import pathlib

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def write_tokens(path, count, vocabulary, seed):
    rng = np.random.default_rng(seed)
    successors = rng.integers(0, vocabulary, size=(vocabulary, 4))
    choice, anywhere, jumps = rng.integers(0, 4, count), rng.integers(0, vocabulary, count), rng.random(count) < 0.1
    tokens = np.empty(count, dtype=np.uint16)
    token = 0
    for i in range(count):
        token = anywhere[i] if jumps[i] else successors[token, choice[i]]
        tokens[i] = token
    tokens.tofile(path)


def write_model(path, arguments):
    torch.manual_seed(arguments.seed)
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=arguments.hidden_size, num_hidden_layers=arguments.layers, num_attention_heads=arguments.heads,
        num_key_value_heads=arguments.key_value_heads, intermediate_size=arguments.intermediate_size,
        vocab_size=arguments.vocabulary, max_position_embeddings=arguments.sequence_length,
        tie_word_embeddings=False)).float()
    model.save_pretrained(path)
    print(f"{sum(p.numel() for p in model.parameters())} parameters")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    for name, value in (("hidden-size", 512), ("layers", 8), ("heads", 8), ("key-value-heads", 4),
                        ("intermediate-size", 1408), ("vocabulary", 8192), ("sequence-length", 512),
                        ("tokens", 1 << 16), ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=value)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_tokens(arguments.out / "tokens.bin", arguments.tokens, arguments.vocabulary, arguments.seed)
    write_model(arguments.out / "model", arguments)


if __name__ == "__main__":
    main()
