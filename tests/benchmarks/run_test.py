"""Measures stand-ins whose times, memory and losses are known."""

import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATH = ROOT / "benchmarks" / "run"
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

# A launcher: one process of 300 MB that ends before the steps, as a compiler would, then ranks of 50 and 150 MB.
LAUNCHER = """
import subprocess, sys
hold = "block = bytearray(b'x') * int(sys.argv[2]); import time; time.sleep(0.3)"
subprocess.run([sys.executable, "-c", "import sys; " + hold, "", "300_000_000"], check=True)
ranks = [subprocess.Popen([sys.executable, "-c", "import sys; " + hold + program, metrics, size])
         for size, metrics, program in (("50_000_000", "", "; time.sleep(0.6)"), ("150_000_000", sys.argv[1], PROGRAM))]
sys.exit(max(rank.wait() for rank in ranks))
"""

# Uses 0.3 seconds, then waits to be let go.
BUSY = "import sys, time\nwhile time.process_time() < 0.3: pass\nsys.stdin.read()"

# Both programs of a comparison, told apart by their arguments, which it writes down. It knows no DeepSpeed.
STAND_IN = """#!{python}
import json, os, sys, time
words = sys.argv[1:]
with open({log!r}, "a") as log:
    print("OMP_NUM_THREADS=" + os.environ.get("OMP_NUM_THREADS", ""), *words, file=log)
if words[0] == "-c":
    sys.exit("No module named 'deepspeed'" if "import deepspeed" in words[1] else print("2.0 5.0"))
if words[0].endswith("make_inputs.py"):
    sys.exit()
if "train" in words:
    options = dict(word.split("=") for word in words[words.index("train") + 2:])
    steps, metrics = options["training.steps"], options["training.output"] + "/metrics.jsonl"
    os.makedirs(options["training.output"], exist_ok=True)
else:
    steps, metrics = words[words.index("--steps") + 1], words[words.index("--steps") - 1]
with open(metrics, "w") as file:
    for step in range(int(steps)):
        time.sleep(0.1)
        print(json.dumps({{"step": step + 1, "loss": 9 - step, "step_time_s": 0.1}}), file=file, flush=True)
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

    def test_the_largest_rank_is_the_peak(self):
        seen = self.watch(LAUNCHER.replace("PROGRAM", repr(PROGRAM.replace("200_000_000", "1"))))
        self.assertEqual(seen.losses, [9, 8, 7, 6, 5, 4])
        self.assertGreater(seen.peak, 150_000_000)
        self.assertLess(seen.peak, 200_000_000)

    def test_what_descendants_use_counts_as_the_program(self):
        child = subprocess.Popen([sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])",
                                  sys.executable, "-c", BUSY], stdin=subprocess.PIPE)
        try:
            deadline = time.monotonic() + 30
            while sum(map(run.process_seconds, run.family(child.pid))) < 0.3 and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertEqual(len(run.family(child.pid)), 2)
            self.assertGreaterEqual(run.process_seconds(run.family(child.pid)[1]), 0.2)
            child.stdin.close()  # the grandchild ends, its parent takes over its time
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            self.assertEqual(run.family(child.pid), [child.pid])
            self.assertGreaterEqual(run.process_seconds(child.pid), 0.3)
        finally:
            child.kill()
            child.wait()

    def test_a_program_that_fails(self):
        with self.assertRaisesRegex(SystemExit, "(?s)exit code 3 of.*no such thing"):
            self.watch("import sys; print('no such thing'); sys.exit(3)")

    def test_a_program_that_stops_early(self):
        with self.assertRaisesRegex(SystemExit, "exit code 0 of"):
            self.watch(PROGRAM.replace("range(6)", "range(5)"))


class Figures(unittest.TestCase):
    def result(self, ours_time, others=0.0, losses=((2.0, 1.0), (2.0, 1.0)), peaks=(50, 100), row="plain"):
        ours, peer = ("ours", run.ROWS[row].ours), ("peer", run.ROWS[row].peer)
        times = {ours: [measured(ours_time, others)], peer: [measured(1.0, 0.0)]}
        memory = {ours: measured(1.0, 0.0, losses[0], peaks[0]), peer: measured(1.0, 0.0, losses[1], peaks[1])}
        memory[peer].base = 40
        return {"rows": [run.row_of(row, times, memory, 1)], "skipped": {},
                "losses": {" ".join(name): seen.losses for name, seen in memory.items()}}

    def test_disturbed_runs_do_not_count(self):
        runs = [measured(9.0, 0.5), measured(1.0, 0.05), measured(2.0, 0.0)]
        self.assertEqual(run.step_time(runs, 2), (1.5, 1.0, True))

    def test_too_few_clean_runs_are_no_valid_time(self):
        runs = [measured(9.0, 0.5), measured(8.0, 0.2), measured(2.0, 0.0)]
        self.assertEqual(run.step_time(runs, 2), (8.0, 2.0, False))

    def test_targets_reached(self):
        text = run.report(self.result(0.7))
        self.assertIn("step time 0.7: reached", text)
        self.assertIn("peak memory 0.5: reached (at most 0.8); 0.833 of what the peer adds to its start", text)
        self.assertIn("losses of 2 steps 0: reached", text)

    def test_targets_missed(self):
        text = run.report(self.result(0.9, losses=((2.0, 1.0), (2.0, 1.5)), peaks=(90, 100)))
        self.assertIn("step time 0.9: MISSED (at most 0.75), 1.20 times the target", text)
        self.assertIn("peak memory 0.9: MISSED", text)
        self.assertIn("losses of 2 steps 0.5: MISSED", text)

    def test_targets_of_ranks(self):
        for row, peer in (("zero3-fsdp2", "FSDP2"), ("zero1-deepspeed", "DeepSpeed ZeRO-1")):
            text = run.report(self.result(0.7, peaks=(84, 100), row=row))
            self.assertIn(f"/ {peer} against its targets", text)
            self.assertIn("step time 0.7: reached (at most 0.75)", text)
            self.assertIn("peak memory per rank 0.84: reached (at most 0.85)", text)
            text = run.report(self.result(0.76, peaks=(86, 100), row=row))
            self.assertIn("step time 0.76: MISSED", text)
            self.assertIn("peak memory per rank 0.86: MISSED", text)

    def test_no_verdict_on_a_busy_machine(self):
        text = run.report(self.result(0.1, others=0.2))
        self.assertIn("0.10 (!)", text)
        self.assertIn("step time 0.1: no verdict", text)

    def test_a_loss_that_is_no_number_is_no_match(self):
        text = run.report(self.result(0.7, losses=((2.0, float("nan")), (2.0, 1.0))))
        self.assertIn("MISSED", text)


class Whole(unittest.TestCase):
    def test_quick_with_ranks_and_without_deepspeed(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            stand_in, log = folder / "stand_in", folder / "log"
            stand_in.write_text(STAND_IN.format(python=sys.executable, log=str(log)), encoding="utf-8")
            stand_in.chmod(0o755)
            done = subprocess.run(
                [sys.executable, PATH, "--quick", "--program", stand_in, "--out", folder / "out",
                 "--rows", "plain,zero3-fsdp2,zero3-deepspeed,zero2-deepspeed"],
                env={**os.environ, "PALIMPSEST_PEER_PYTHON": str(stand_in)}, capture_output=True, text=True, check=True)
            text = (folder / "out" / "comparison.md").read_text(encoding="utf-8")
            self.assertIn(text, done.stdout)
            self.assertIn("losses of 3 steps 0: reached", text)
            self.assertIn("2 ranks, ZeRO-3 / FSDP2 against its targets", text)
            self.assertNotIn("/ DeepSpeed", text)
            for row in ("zero3-deepspeed", "zero2-deepspeed"):
                self.assertRegex(text, f"Skipped: {row}: .* has no deepspeed==.*No module named 'deepspeed'")
            self.check_commands(log.read_text(encoding="utf-8").splitlines())

    def check_commands(self, commands):
        """Each variant twice, for memory and for time; two ranks have one thread each, one process two."""
        trained = [line for line in commands if "train" in line]
        self.assertEqual(len(trained), 8)
        for program, one, ranks in (("training.threads", "2 train ", "1 launch -n 2 train "),
                                    ("--threads", "2 /", "1 -m torch.distributed.run --standalone --nproc-per-node 2 /")):
            mine = [line for line in trained if program in line]
            self.assertEqual(sum(line.startswith("OMP_NUM_THREADS=" + one) for line in mine), 2)
            self.assertEqual(sum(line.startswith("OMP_NUM_THREADS=" + ranks) for line in mine), 2)
        self.assertEqual(sum("parallel.zero=3" in line and "training.threads=1 " in line for line in trained), 2)
        self.assertEqual(sum("train_fsdp2.py" in line and "--threads 1" in line for line in trained), 2)


class Developers(unittest.TestCase):
    def test_dev_bench_runs_every_script_here(self):
        bench = (ROOT / "dev").read_text().split("\nbench() {")[1].split("\n}")[0]
        scripts = [path.name for path in PATH.parent.iterdir() if path.is_file() and os.access(path, os.X_OK)]
        self.assertGreaterEqual(len(scripts), 2)
        for name in scripts:
            self.assertIn(f"\n  benchmarks/{name} \"$@\"\n", bench + "\n")

    def test_dev_bench_takes_what_all_of_them_know(self):
        refused = subprocess.run([ROOT / "dev", "bench", "--rows", "plain"], capture_output=True, text=True)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("bench takes --quick alone", refused.stderr)


if __name__ == "__main__":
    unittest.main()
