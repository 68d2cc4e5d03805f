"""What a tracker costs a training: seconds for each step with a tracker beside it, over those without one.

python bench/bench_trackers.py [--steps 2000] [--rounds 4] [--only none,answers,hangs,refuses,dies,wandb] [--busy 2]

A real worker runs a job whose steps are products of matrices on one thread, with a metric at each tenth step. The
tracker is MLflow, whose server on loopback answers, hangs, refuses, or dies in the middle; or W&B offline. The
kinds take turns, each round in another order. A ratio is that of a run's step to the one without a tracker in the
same round; the table has the median of the rounds' ratios and their range: of the median step, of the mean of all
steps, and of the processor's time. Other work on the machine moves the first two. Wanted on an idle machine: 0.99 to
1.01; it takes four to five minutes there, with steps of 3 ms: a tracker is heard of after the first three seconds.
With --busy, so many processes that only compute run beside each job. The table says how long after its step a row
came to the server.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from side_by_side import chosen_names, use_test_helpers

use_test_helpers()
from test_local import Place  # noqa: E402
from tracker_server import TrackerServer  # noqa: E402

from fsdl_dev.worker.observe import worker_of  # noqa: E402
from fsdl_dev.worker.processes import is_alive  # noqa: E402

JOB = """
    import os, sys, time
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import json
    import numpy as np
    import fsdl_dev
    a, took = np.random.rand(300, 300), []
    for step in range(int(sys.argv[2])):
        began = time.perf_counter(), time.process_time()
        for _ in range(4):
            a = a @ a.T
            a /= a.max()
        if step % 10 == 0:
            fsdl_dev.log(step=step, loss=float(a[0, 0]))
        took.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    json.dump(took, open(sys.argv[1], "w"))
    """
KINDS = {
    "none": None,
    "answers": "answers",
    "hangs": "hangs",
    "refuses": "refuses",
    "dies": "answers",
    "wandb": None,
}


LAGS: dict[str, list[list[float]]] = {}  # kind -> of each run the seconds that its rows took to the server


def step_of(kind: str, place: Place, folder: Path, steps: int) -> tuple[float, ...]:
    """A step of one run: its median and its mean by the clock, and its mean of the processor, in seconds."""
    loggers = () if kind == "none" else ("wandb",) if kind == "wandb" else ("mlflow",)
    with TrackerServer(KINDS[kind] or "answers") as server:
        os.environ["MLFLOW_TRACKING_URI"] = server.url
        file = folder / f"{kind}.json"
        if kind == "dies":
            threading.Thread(
                target=lambda: server.asked.wait(60) and setattr(server, "habit", "refuses"), daemon=True
            ).start()
        run = place.script(JOB, str(file), str(steps), loggers=loggers)
        LAGS.setdefault(kind, []).append(server.lags)
        assert place.wait(run) == "succeeded", place.log(run)
        who = worker_of(run)
        place.until(lambda: not is_alive(who))  # the tracker has the rest, or its process was ended
    clock, processor = zip(*json.loads(file.read_text())[steps // 10 :])
    return statistics.median(clock), statistics.fmean(clock), statistics.fmean(processor)


def main() -> None:
    """Run the kinds in turn and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    os.environ |= {"FSDL_SLOTS": "4", "WANDB_MODE": "offline"}
    os.environ |= {"MLFLOW_HTTP_REQUEST_TIMEOUT": "2", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    names = chosen_names(options.only, KINDS)
    names = ["none", *(name for name in names if name != "none")]
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FSDL_STATE": f"{folder}/state", "FSDL_STORE": f"{folder}/store"}
        place = Place(Path(folder))
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
        try:
            for number in range(options.rounds):
                for name in names[number % len(names) :] + names[: number % len(names)]:
                    times[name].append(step_of(name, place, Path(folder), options.steps))
        finally:
            for other in others:
                other.kill()
    for name, found in times.items():
        parts = []
        for at, what in enumerate(("median", "mean", "processor")):
            ratios = [one[at] / base[at] for one, base in zip(found, times["none"])]
            middle = statistics.median(one[at] for one in found)
            spread = f"{statistics.median(ratios):6.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            parts.append(f"{what} {middle * 1e3:7.3f} ms {spread}")
        lags = [lag for run in LAGS[name] for lag in run]
        late = f"   rows after {statistics.median(lags):.1f} s, the last {max(lags):.1f} s" if lags else ""
        print(f"{name:>8}  {'   '.join(parts)}{late}")


if __name__ == "__main__":
    main()
