"""What a tracker costs a training: seconds for each step with a tracker beside it, over those without one.

python bench/bench_trackers.py [--steps 600] [--rounds 5] [--only none,answers,hangs,refuses,dies,wandb] [--busy 2]

A real worker runs a job whose steps are products of matrices on one thread, with a metric at each tenth step. The
tracker is MLflow, whose server on loopback answers, hangs, refuses, or dies in the middle; or W&B offline. The
kinds take turns, and the table has the ratio of the medians of all steps, and of their fastest tenths: other work on
the machine moves the medians. Wanted on an idle machine: 0.99 to 1.01. With --busy, so many processes that only
compute run beside each job. The table says how long after its step a row came to the server.
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
        began = time.perf_counter()
        for _ in range(4):
            a = a @ a.T
            a /= a.max()
        if step % 10 == 0:
            fsdl_dev.log(step=step, loss=float(a[0, 0]))
        took.append(time.perf_counter() - began)
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


def steps_of(kind: str, place: Place, folder: Path, steps: int) -> list[float]:
    """The seconds of each step of one run."""
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
    return json.loads(file.read_text())[steps // 10 :]


def main() -> None:
    """Run the kinds in turn and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    os.environ |= {"FSDL_SLOTS": "4", "WANDB_MODE": "offline"}
    names = chosen_names(options.only, KINDS)
    times: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FSDL_STATE": f"{folder}/state", "FSDL_STORE": f"{folder}/store"}
        place = Place(Path(folder))
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
        try:
            for number in range(options.rounds):
                for name in names[number % len(names) :] + names[: number % len(names)]:
                    times[name] += steps_of(name, place, Path(folder), options.steps)
        finally:
            for other in others:
                other.kill()
    figures = {
        name: (statistics.median(found), statistics.quantiles(found, n=10)[0])
        for name, found in times.items()
    }
    base, least = figures.get("none", (1.0, 1.0))
    for name, (median, tenth) in figures.items():
        parts = f"{median / base:6.3f} of none   fastest tenth {tenth * 1e3:8.3f} ms {tenth / least:6.3f}"
        lags = [lag for run in LAGS[name] for lag in run]
        late = f"   rows after {statistics.median(lags):.1f} s, the last {max(lags):.1f} s" if lags else ""
        print(f"{name:>8}  median {median * 1e3:8.3f} ms a step {parts}{late}")


if __name__ == "__main__":
    main()
