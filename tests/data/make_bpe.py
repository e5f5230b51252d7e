#!/usr/bin/env python3
"""Merges that the reference library trains on the texts of tokenizers/gpt2-2000/cases.json: tokenizers/trained.json.

    python3 -m venv v && v/bin/pip install tokenizers==0.23.3 && v/bin/python tests/data/make_bpe.py
"""

import json
import pathlib

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent / "tokenizers"
TOKENS = 560


def train(text, split):
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = byte_level
    if split is not None:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), byte_level])
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=TOKENS, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return json.loads(tokenizer.to_str())["model"]["merges"]


def main():
    cases = json.loads((HERE / "gpt2-2000" / "cases.json").read_text())["cases"]
    text = "\n".join(case["text"] for case in cases)
    split = json.loads((HERE / "llama3-512" / "tokenizer.json").read_text())["pre_tokenizer"]["pretokenizers"][0]
    merges = {"gpt2": train(text, None), "llama3": train(text, split["pattern"]["Regex"])}
    lines = [f' "{name}": {json.dumps(pairs, separators=(",", ":"))}' for name, pairs in merges.items()]
    (HERE / "trained.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
