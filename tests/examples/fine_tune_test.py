#!/usr/bin/env python3
"""The example of fine-tuning: its data, and all of it at a small scale. The program is the argument."""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/fine-tune")
PROGRAM = sys.argv.pop() if len(sys.argv) > 1 else ""


def load(name):
    spec = importlib.util.spec_from_file_location(name, os.path.join(EXAMPLE, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_data = load("make_data")


def json_lines(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


class Definitions(unittest.TestCase):
    def definition(self, text):
        entries = list(make_data.entries_of([line + "\n" for line in text.split("\n")]))
        self.assertEqual(len(entries), 1)
        return make_data.definition(entries[0])

    def test_plain(self):
        self.assertEqual(
            self.definition('Abditory \\Ab"di*to*ry\\, n. [L. abditorium.]\n'
                            "   A place for hiding or preserving articles of value. --Cowell.\n   [1913 Webster]\n"),
            ("abditory", "noun", "A place for hiding or preserving articles of value."))

    def test_first_sense_without_subject(self):
        self.assertEqual(
            self.definition('Lamina \\Lam"i*na\\ (l[a^]m"[i^]*n[.a]), n. [L. cf. {Lamella}.]\n'
                            "   1. (Bot.) The blade of a {leaf}; the broad, expanded portion of\n      a petal.\n\n"
                            "   2. A thin plate or scale.\n"),
            ("lamina", "noun", "The blade of a leaf."))

    def test_verb_before_its_example(self):
        self.assertEqual(
            self.definition('Dungeon \\Dun"geon\\, v. t.\n   To shut up in a dungeon; as, to dungeon a thief.\n'),
            ("dungeon", "verb", "To shut up in a dungeon."))

    def test_others_are_left_out(self):
        self.assertIsNone(self.definition('Lamentin \\La*men"tin\\, n.\n   See {Lamantin}.\n'))
        self.assertIsNone(self.definition("00-database-info\n   This file was converted.\n"))


@unittest.skipUnless(PROGRAM, "the program is not given")
class WholeExample(unittest.TestCase):
    def test_quick(self):
        with tempfile.TemporaryDirectory() as out:
            done = subprocess.run(
                [os.path.join(EXAMPLE, "run"), "--quick", "--program", PROGRAM, "--out", out],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout)
            words = {name: {line["messages"][-1]["content"] for line in json_lines(f"{out}/data/{name}.jsonl")}
                     for name in ("chat", "chat_held")}
            self.assertGreater(len(words["chat_held"]), 5)
            self.assertFalse(words["chat"] & words["chat_held"])  # no answer is in both
            for run in ("pretrain", "chat"):
                losses = [line["loss"] for line in json_lines(f"{out}/{run}/metrics.jsonl") if "tokens" in line]
                self.assertLess(sum(losses[-5:]), 0.8 * sum(losses[:5]), run)
            with open(f"{out}/losses.svg", encoding="utf-8") as svg:
                self.assertEqual(svg.read().count("<polyline"), 6)


if __name__ == "__main__":
    unittest.main()
