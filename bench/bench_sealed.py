"""What a sealed number costs beyond the evaluation itself.

    python bench/bench_sealed.py [--repeat 5]

The same `evaluate` of the same checkpoint: run by a plain script of its own (load the checkpoint, call
evaluate, print), and measured by the worker's sealed step. Wall-clock seconds, medians. The aim: one evaluation
and 3 s. The script is what a person would write instead; its start imports torch too.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
import sealed_project as made

from fsdl_dev.records.run import Run

SLOW_EVALUATE = """def evaluate(model) -> dict[str, float]:
    rows = test_rows().repeat(40_000, 1)
    right = [model(part[:, :2]).argmax(1) == part[:, 2].long() for part in rows.split(64)]
    return {"accuracy": torch.cat(right).float().mean()}
"""
SCRIPT = """import sys, time

import torch

from proj.digits import Net, evaluate

model = Net()
model.load_state_dict(torch.load(sys.argv[1])["state_dict"])
with torch.no_grad():
    began = time.perf_counter()
    print(float(evaluate(model.eval())["accuracy"]), time.perf_counter() - began)
"""


def timed(action) -> tuple[float, object]:
    began = time.perf_counter()
    found = action()
    return time.perf_counter() - began, found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ |= {"FSDL_STATE": f"{place}/state"}
        root = made.make_project(Path(place, "project"), made.cells(evaluate=SLOW_EVALUATE))
        alone, script, sealed = [], [], []
        for _ in range(options.repeat):
            run = made.made_run(root)
            command = [sys.executable, "-c", SCRIPT, str(run.checkpoints / "best.ckpt")]
            seconds, done = timed(lambda c=command: subprocess.check_output(c, text=True, cwd=root).split())
            script.append(seconds)
            alone.append(float(done[1]))
            seconds, _ = timed(lambda r=run: made.end(r, root))
            sealed.append(seconds)
            (value,) = Run(run).view.sealed.values().values()
            assert value == float(done[0]), (value, done)
    one, plain, ours = (statistics.median(each) for each in (alone, script, sealed))
    print(f"one evaluation {one:.2f} s; a plain script of its own {plain:.2f} s; sealed {ours:.2f} s")
    print(f"sealed: one evaluation and {ours - one:.2f} s; {ours / plain:.2f} of the script's time")


if __name__ == "__main__":
    main()
