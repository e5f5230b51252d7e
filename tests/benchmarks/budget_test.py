"""Measures a stand-in whose peaks and times are known."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

PATH = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "budget"
sys.dont_write_bytecode = True
LOADER = importlib.machinery.SourceFileLoader("budget", str(PATH))
budget = importlib.util.module_from_spec(importlib.util.spec_from_loader("budget", LOADER))
sys.modules["budget"] = budget  # where dataclasses look for it
LOADER.exec_module(budget)

# Takes between 1000 and 2000 bytes, and 90 % of what it is allowed; auto takes 0.08 s a step, policies 0.1 s.
STAND_IN = """#!{python}
import json, os, sys, time
words = sys.argv[1:]
if "--save-chain" in words:
    chain = dict(names=["embed", "layers.0", "layers.1"], fw=[1, 2, 3], bw=[1, 2, 3], a=[0, 5, 5, 5], abar=[1, 9, 9],
                 ftmp=[0, 0, 0], btmp=[0, 0, 0], loss_bw=1, loss_tmp=0, fw_value=[0, 1, 2], grad=[0, 3, 4], loss_grad=5)
    json.dump(chain, open(words[words.index("--save-chain") + 1], "w"))
    sys.exit()
if "--chain" in words:
    ops = [dict(op="Fck", stage=1), dict(op="Fall", stage=2, tape="full"), dict(op="LOSS", stage=3)]
    feasible = words[words.index("--planner") + 1] in ("none", "full", "sqrt")
    print(json.dumps(dict(peak=20, least_budget=10, operations=ops, feasible=feasible)))
    sys.exit()
options = dict(word.split("=") for word in words if "=" in word)
policy = options.get("activation_checkpointing", "full")
allowed = options.get("memory.device_budget")
if allowed == "1":
    sys.exit("not enough, it takes 1 kB (%d bytes) at least by x" % (1000 if policy == "auto" else 2000))
peak, step = (900, 0.1) if allowed is None else (int(allowed) * 9 // 10, 0.08)
os.makedirs({output}, exist_ok=True)
with open({output} + "/metrics.jsonl", "w") as file:
    for number in range(int(options["training.steps"])):
        time.sleep(0.1)
        print(json.dumps(dict(loss=1, step_time_s=step, peak_device_bytes=peak)), file=file, flush=True)
summary = dict(predicted_step_s=step * 1.05, predicted_peak_bytes=peak * 1.01)
json.dump(dict(summary=summary), open(words[words.index("--json") + 1], "w"))
"""


def operations(text):
    """'Fck1 Fall2 ... LOSS ...' as a plan prints them."""
    found = []
    for word in text.split():
        name = word.rstrip("0123456789")
        found.append({"op": name, "stage": int(word[len(name):] or 0), "tape": "lean"})
    return found


def setting(policy, text):
    return dict(word.removeprefix("activation_checkpointing.").split("=")
                for word in budget.setting_of(policy, operations(text)))


class Settings(unittest.TestCase):
    TAIL = " LOSS B4 Fall3 B3 Fall2 B2 Fall1 B1"

    def test_nothing_runs_again(self):
        self.assertIsNone(budget.setting_of("uniform", operations("Fall1 Fall2 LOSS B2 B1")))

    def test_full(self):
        self.assertEqual(setting("full", "Fck1 Fck2 Fck3 Fck4" + self.TAIL),
                         {"policy": "full", "tape": "lean", "keep_last_segment": "false"})
        self.assertEqual(setting("full", "Fck1 Fck2 Fck3 Fall4" + self.TAIL)["keep_last_segment"], "true")

    def test_every_n(self):
        self.assertEqual(setting("every_n", "Fck1 Fnull2 Fck3 Fnull4" + self.TAIL)["n"], "2")
        self.assertEqual(setting("every_n", "Fck1 Fnull2 Fnull3 Fall4" + self.TAIL)["n"], "3")
        self.assertEqual(setting("every_n", "Fck1 Fnull2 Fnull3 Fnull4" + self.TAIL)["n"], "4")

    def test_uniform(self):
        self.assertEqual(setting("uniform", "Fck1 Fnull2 Fck3 Fnull4" + self.TAIL)["segments"], "2")
        self.assertEqual(setting("uniform", "Fck1 Fck2 Fall3 Fall4" + self.TAIL)["segments"], "3")

    def test_key_layers(self):
        self.assertEqual(setting("key_layers", "Fck1 Fall2 Fall3 Fck4" + self.TAIL),
                         {"policy": "key_layers", "tape": "lean", "count": "2"})


class Chains(unittest.TestCase):
    def test_blocks_of_a_layer_are_one_stage(self):
        costs = budget.by_layers({
            "names": ["embed", "model.layers.0.attention", "model.layers.0.mlp", "model.layers.10.attention",
                      "model.layers.10.mlp"],
            "fw": [1, 2, 3, 4, 5], "bw": [10, 20, 30, 40, 50], "a": [7, 6, 5, 4, 3, 2], "abar": [9, 1, 2, 3, 4],
            "ftmp": [99, 5, 6, 8, 7], "btmp": [99, 6, 5, 7, 8], "loss_bw": 11, "loss_tmp": 12,
            "fw_value": [0, 1, 2, 3, 4], "grad": [9, 1, 2, 3, 4], "loss_grad": 13,
            "lean": {"bw": [0, 1, 2, 3, 4], "abar": [0, 1, 1, 2, 2], "ftmp": [0, 0, 1, 1, 0], "btmp": [0, 0, 0, 0, 0],
                     "fw_value": [1, 1, 2, 3, 5]}})
        self.assertEqual(costs, {
            "names": ["model.layers.0", "model.layers.10"], "fw": [5, 9], "bw": [50, 90], "a": [6, 4, 2],
            "abar": [3, 7], "ftmp": [6, 8], "btmp": [6, 8], "loss_bw": 11, "loss_tmp": 12,
            "fw_value": [2, 4], "grad": [3, 7], "loss_grad": 13,
            "lean": {"bw": [3, 7], "abar": [2, 4], "ftmp": [1, 1], "btmp": [0, 0], "fw_value": [2, 5]}})

    def test_bytes_of_an_mlp(self):
        chain = budget.mlp(3, input_size=2, hidden_sizes=[5, 4])
        self.assertEqual(chain.parameter_bytes, 4 * (2 * 5 + 5 + 5 * 4 + 4 + 4 * 1 + 1))
        self.assertEqual(chain.batch_bytes, 4 * 3 * (2 + 1))

    def test_features(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            config = json.loads(budget.mlp(3, input_size=2, hidden_sizes=[5]).config(folder).read_text("utf-8"))
            data = pathlib.Path(config["data"]["files"][0]).read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8: 8 + size])
        self.assertEqual(header["inputs"], {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]})
        self.assertEqual(header["targets"], {"dtype": "F32", "shape": [3, 1], "data_offsets": [24, 36]})
        self.assertEqual(len(data), 8 + size + 36)

    def test_budgets(self):
        self.assertEqual(budget.between(100, 200, 3), [100, 150, 200])
        self.assertEqual(budget.between(100, 200, 1), [100])


def sample(seconds, peak, others=0.0, predicted=1.0):
    return budget.Sample(seconds, peak, seconds * predicted, int(peak * predicted), others=others)


class Verdicts(unittest.TestCase):
    def kept(self, *samples, bytes_given=1000):
        return "\n".join(budget.kept_report([budget.kept_row("mlp", bytes_given, samples)])[1])

    def policies(self, *pairs):
        setting = budget.Setting(("activation_checkpointing.policy=full",), ["full"], [0.2])
        return "\n".join(budget.policies_report([budget.policy_row("shrinking", setting, pairs)], ["shrinking"])[1])

    def test_kept(self):
        text = self.kept(sample(1.0, 1000, predicted=1.02), sample(1.0, 900, predicted=0.98))
        self.assertIn("measured peak of the budget 1: reached", text)
        self.assertIn("predicted peak off by 0.02: reached (at most 0.03)", text)
        self.assertIn("predicted step time off by 0: reached (at most 0.1)", text)

    def test_one_peak_above_the_budget(self):
        text = self.kept(sample(1.0, 500, predicted=0.8), sample(1.0, 1010, predicted=0.8))
        self.assertIn("measured peak of the budget 1.01: MISSED", text)
        self.assertIn("predicted peak off by 0.2: MISSED", text)
        self.assertIn("predicted step time off by 0.2: MISSED", text)

    def test_no_verdict_on_a_busy_machine(self):
        text = self.kept(sample(1.0, 1000, others=0.5))
        self.assertIn("measured peak of the budget 1: reached", text)
        self.assertIn("predicted step time off by: 0.000 at most; no verdict", text)

    def test_ratios_are_of_pairs(self):
        # Each round both programs are slower together.
        text = self.policies(*((sample(t, 100), sample(0.9 * t, 99)) for t in (1.0, 3.0, 9.0)))
        self.assertIn("auto's peak of the policy's 0.99: reached", text)
        self.assertIn("noise of 0.02 allowed for 0.9: reached", text)
        self.assertIn("shrinking at 20%: auto's time of the best policy's (full) 0.9: reached (at most 0.92)", text)

    def test_slower_or_larger_than_a_policy(self):
        text = self.policies((sample(1.0, 100), sample(1.05, 101)))
        self.assertIn("auto's peak of the policy's 1.01: MISSED", text)
        self.assertIn("noise of 0.02 allowed for 1.05: MISSED", text)
        self.assertIn("(full) 1.05: MISSED (at most 0.92)", text)

    def test_the_best_policy_is_the_fastest_of_its_level(self):
        rows = [budget.policy_row("shrinking", budget.Setting((), [name], levels),
                                  [(sample(seconds, 100), sample(1.0, 100))])
                for name, levels, seconds in (("full", [0.2, 0.4], 3.0), ("sqrt", [0.2], 2.0), ("every_n", [0.4], 4.0))]
        best = {level: row["policies"][0] for level, row in budget.best_rows(rows, ["shrinking"]).items()}
        self.assertEqual(best, {0.2: "sqrt", 0.4: "full"})
        self.assertEqual(budget.best_rows(rows, ["other"]), {})

    def test_peer(self):
        rows = [budget.peer_row((segments, gradients), size, 1000, [(seconds, sample(0.7, 90))])
                for segments, gradients, size, seconds in ((2, "kept", 400, 0.9), (8, "kept", 200, 1.0),
                                                           (2, "dropped", 100, 0.9), (8, "dropped", 300, 0.8))]
        text = "\n".join(budget.peer_report(rows)[1])
        self.assertIn("memory of PyTorch's 0.9: reached", text)
        self.assertIn("time of PyTorch's with its fewest bytes (8 segments), gradients kept 0.7: reached", text)
        self.assertIn("time of PyTorch's with its fewest bytes (2 segments), gradients dropped 0.778: MISSED", text)


class Whole(unittest.TestCase):
    def test_quick_without_a_peer(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            stand_in = folder / "stand_in"
            output = "json.load(open(words[1]))['training']['output']"
            stand_in.write_text(STAND_IN.format(python=sys.executable, output=output), encoding="utf-8")
            stand_in.chmod(0o755)
            done = subprocess.run([sys.executable, PATH, "--quick", "--chains", "mlp", "--program", stand_in, "--out",
                                   folder / "out"], env={**os.environ, "PALIMPSEST_PEER_PYTHON": "/no/python"},
                                  capture_output=True, text=True, check=True)
            text = (folder / "out" / "budget.md").read_text(encoding="utf-8")
            result = json.loads((folder / "out" / "budget.json").read_text(encoding="utf-8"))
        self.assertIn(text, done.stdout)
        self.assertIn("Skipped: peer: no Python with PyTorch", text)
        kept, policies = result["parts"]["kept"], result["parts"]["policies"]
        self.assertEqual([row["budget_bytes"] for row in kept], [1000, 2000])
        self.assertEqual([row["peak_bytes"] for row in kept], [900, 1800])
        for row in kept:
            self.assertAlmostEqual(row["predicted_of_step"], 1.05)
            self.assertAlmostEqual(row["predicted_of_peak"], 1.01)
        self.assertEqual([row["policies"] for row in policies], [["full", "sqrt"]])
        self.assertEqual((policies[0]["peak_bytes"], policies[0]["auto_peak_bytes"]), (900, 810))
        self.assertAlmostEqual(policies[0]["ratio"], 0.8)


if __name__ == "__main__":
    unittest.main()
