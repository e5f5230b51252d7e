#!/usr/bin/env python3
"""Texts encoded by the tokenizers library: seconds of each round, and a sum of the ids, as JSON.

    RAYON_NUM_THREADS=2 python encode_texts.py TOKENIZER_FOLDER TEXTS THREADS ROUNDS

TEXTS is a file of texts with a zero byte after each. One thread is the library without parallelism.
"""

import json
import os
import sys
import time


def main():
    folder, texts, threads, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    import tokenizers  # after the settings that it reads

    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    with open(texts, encoding="utf-8", newline="") as file:
        documents = file.read().split("\0")[:-1]
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        encodings = tokenizer.encode_batch_fast(documents)
        seconds.append(time.perf_counter() - begin)
    place = total = 0
    for encoding in encodings:
        for token in encoding.ids:
            place += 1
            total += token * (place % 1009)
    print(json.dumps({"version": tokenizers.__version__, "seconds": seconds, "tokens": place, "sum": total}))


if __name__ == "__main__":
    main()
