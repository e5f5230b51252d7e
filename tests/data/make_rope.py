#!/usr/bin/env python3
"""Writes rope.json: inverse frequencies and attention scaling of transformers' own formulas, in double precision.

The formulas are called with a stand-in for torch that holds what they use, over numpy in float64; so nothing of their
rounding stays and PyTorch is not needed.
"""
import json
import pathlib
import types

import numpy
import transformers
from transformers import LlamaConfig, modeling_rope_utils


class Array(numpy.ndarray):
    def to(self, *args, **kwargs):
        return self.astype(numpy.float64)


def stand_in():
    wrap = lambda values: numpy.asarray(values, dtype=numpy.float64).view(Array)
    return types.SimpleNamespace(
        int64=None, float=None, float32=None, Tensor=Array,
        arange=lambda *args, **kwargs: wrap(numpy.arange(*args)),
        clamp=lambda values, low, high: wrap(numpy.clip(values, low, high)),
        where=lambda condition, left, right: wrap(numpy.where(condition, left, right)))


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# (rope_scaling, theta, head_dim, max_position_embeddings, sequence length)
CASES = [
    (None, 1e4, 64, 2048, 2048),
    ({"rope_type": "linear", "factor": 2.5}, 1e4, 32, 8192, 8192),
    *[({"rope_type": "dynamic", "factor": factor}, 1e4, dim, 2048, length)
      for factor, dim, length in [(2.0, 64, 512), (2.0, 64, 2048), (2.0, 64, 2049), (4.0, 16, 9000)]],
    (YARN, 1e4, 64, 8192, 100),
    (YARN | {"truncate": False}, 1e4, 64, 8192, 100),
    (YARN | {"beta_fast": 16.0, "beta_slow": 2.0}, 1e6, 128, 8192, 100),
    (YARN | {"attention_factor": 0.75}, 1e4, 32, 8192, 100),
    (YARN | {"mscale": 0.707, "mscale_all_dim": 1.25}, 1e4, 32, 8192, 100),
    (YARN | {"mscale": 0.707}, 1e4, 32, 8192, 100),
    ({"rope_type": "yarn", "factor": 8.0}, 1e4, 32, 4096, 100),
    (LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 8192}, 5e5, 64, 131072, 100),
    (LLAMA3 | {"factor": 8.0, "original_max_position_embeddings": 64}, 5e5, 16, 512, 100),
]


def main():
    modeling_rope_utils.torch = stand_in()
    answers = []
    for scaling, theta, head_dim, positions, length in CASES:
        config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim, rope_theta=theta,
                             max_position_embeddings=positions, rope_scaling=scaling and dict(scaling))
        formula = modeling_rope_utils.ROPE_INIT_FUNCTIONS[scaling["rope_type"] if scaling else "default"]
        frequencies, attention = formula(config, None, seq_len=length)
        answers.append({"rope_scaling": scaling, "rope_theta": theta, "head_dim": head_dim,
                        "max_position_embeddings": positions, "sequence_length": length,
                        "inverse_frequencies": [float(f) for f in frequencies], "attention_scaling": float(attention)})
    out = {"transformers": transformers.__version__, "cases": answers}
    pathlib.Path(__file__).with_name("rope.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
