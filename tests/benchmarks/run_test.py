"""Measures stand-ins whose times, memory and losses are known."""

import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PATH = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "run"
sys.dont_write_bytecode = True
LOADER = importlib.machinery.SourceFileLoader("comparison", str(PATH))
run = importlib.util.module_from_spec(importlib.util.spec_from_loader("comparison", LOADER))
sys.modules["comparison"] = run  # where dataclasses look for it
LOADER.exec_module(run)

# Holds 200 MB for a moment, then takes six steps of a tenth of a second.
PROGRAM = """
import json, sys, time
block = bytearray(b"x") * 200_000_000
time.sleep(0.2)
del block
with open(sys.argv[1], "w") as metrics:
    for step in range(6):
        time.sleep(0.1)
        print(json.dumps({"step": step + 1, "loss": 9 - step, "step_time_s": 10 + step}), file=metrics, flush=True)
"""


def measured(time, others, losses=(1.0,), peak=100):
    return run.Measured(times=[time] * 3, losses=list(losses), peak=peak, base=0, others=others, wall=time)


class Watch(unittest.TestCase):
    def watch(self, program):
        with tempfile.TemporaryDirectory() as folder:
            metrics = pathlib.Path(folder) / "metrics.jsonl"
            command = [sys.executable, "-c", program, metrics]
            return run.watch(command, dict(os.environ), metrics, pathlib.Path(folder) / "log", 6)

    def test_times_losses_and_peak(self):
        seen = self.watch(PROGRAM)
        self.assertEqual(seen.times, [12, 13, 14, 15])
        self.assertEqual(seen.losses, [9, 8, 7, 6, 5, 4])
        self.assertGreater(seen.peak, 200_000_000)
        self.assertLess(seen.peak, 250_000_000)
        self.assertGreater(seen.wall, 0.05)  # of 0.1 s; a busy machine sees a step end late

    def test_another_process_is_seen(self):
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            self.assertFalse(self.watch(PROGRAM).clean)
        finally:
            busy.kill()
            busy.wait()

    def test_a_program_that_fails(self):
        with self.assertRaisesRegex(SystemExit, "(?s)exit code 3 of.*no such thing"):
            self.watch("import sys; print('no such thing'); sys.exit(3)")

    def test_a_program_that_stops_early(self):
        with self.assertRaisesRegex(SystemExit, "exit code 0 of"):
            self.watch(PROGRAM.replace("range(6)", "range(5)"))


class Figures(unittest.TestCase):
    def result(self, ours_time, others=0.0, losses=((2.0, 1.0), (2.0, 1.0)), peaks=(50, 100)):
        times = {("ours", "plain"): [measured(ours_time, others)], ("peer", "plain"): [measured(1.0, 0.0)]}
        memory = {(who, "plain"): measured(1.0, 0.0, loss, peak)
                  for who, loss, peak in zip(("ours", "peer"), losses, peaks)}
        return {"rows": [run.row_of("plain", times, memory, 1)],
                "losses": {"ours plain": losses[0], "peer plain": losses[1]}}

    def test_disturbed_runs_do_not_count(self):
        runs = [measured(9.0, 0.5), measured(1.0, 0.05), measured(2.0, 0.0)]
        self.assertEqual(run.step_time(runs, 2), (1.5, 1.0, True))

    def test_too_few_clean_runs_are_no_valid_time(self):
        runs = [measured(9.0, 0.5), measured(8.0, 0.2), measured(2.0, 0.0)]
        self.assertEqual(run.step_time(runs, 2), (8.0, 2.0, False))

    def test_targets_reached(self):
        text = run.report(self.result(0.7))
        self.assertIn("step time 0.7: reached", text)
        self.assertIn("peak memory 0.5: reached", text)
        self.assertIn("losses of 2 steps 0: reached", text)

    def test_targets_missed(self):
        text = run.report(self.result(0.9, losses=((2.0, 1.0), (2.0, 1.5)), peaks=(90, 100)))
        self.assertIn("step time 0.9: MISSED (at most 0.75), 1.20 times the target", text)
        self.assertIn("peak memory 0.9: MISSED", text)
        self.assertIn("losses of 2 steps 0.5: MISSED", text)

    def test_no_verdict_on_a_busy_machine(self):
        text = run.report(self.result(0.1, others=0.2))
        self.assertIn("0.10 (!)", text)
        self.assertIn("step time 0.1: no verdict", text)

    def test_a_loss_that_is_no_number_is_no_match(self):
        text = run.report(self.result(0.7, losses=((2.0, float("nan")), (2.0, 1.0))))
        self.assertIn("MISSED", text)


if __name__ == "__main__":
    unittest.main()
