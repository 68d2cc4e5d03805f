"""The log and the card of a very large run, each in a fresh process: seconds, processor seconds and memory.

python bench/bench_large.py [--events 5000000] [--log 2000000000] [--only show]

"worker" folds every event, as a run's worker does a few megabytes at a time while they come. "show" is the first look
after that, with 8 MB of events that the worker had not folded yet. "no worker" is a first look at a log without a kept
view. "cat" and "count" (Python, one line after the other, nothing parsed) say what reading the same bytes costs on this
machine now.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from side_by_side import chosen_names

from fsdl_dev.core.event_kinds import State
from fsdl_dev.core.job import Job
from fsdl_dev.core.rundir import RunDir, create_run_dir

SHOW = "import sys; from fsdl_dev.cli.main import main; main(sys.argv[1:])"
KEEP = """
import sys
from pathlib import Path
from fsdl_dev.core.rundir import RunDir
from fsdl_dev.worker.worker import view_keeper
run = RunDir(Path(sys.argv[1]))
(run.path / "view.json").unlink(missing_ok=True)
view_keeper(run)()
"""
COUNT = "import sys; print(sum(1 for line in open(sys.argv[1], 'rb')))"


def write_metrics(run: RunDir, first: int, count: int) -> None:
    """The metrics of some steps, one event each."""
    with open(run.events / "rank0.jsonl", "a") as file:
        for step in range(first, first + count):
            about = f'{{"t": {1.8e9 + step / 100}, "kind": "metric", "rank": 0, "step": {step}, "epoch": 0, '
            file.write(f'{about}"values": {{"train_loss": {1 / (1 + step / 1e5):.6f}, "lr": 0.0003}}}}\n')


def write_events(run: RunDir, count: int) -> None:
    """The log of a training that writes a metric each step."""
    worker = run.writer("worker")
    for state in ("queued", "starting", "running"):
        worker.write(State(state=state, reason="example"))
    write_metrics(run, 0, count)
    worker.write(State(state="succeeded", reason="exit code 0", exit_code=0))


def write_log(run: RunDir, size: int) -> None:
    """Lines as a training prints them."""
    block = "".join(
        f"step {step:>9,}  loss {1 / (1 + step):.4f}  12.3 it/s\n" for step in range(20_000)
    ).encode()
    with open(run.log(0), "wb") as file:
        for _ in range(size // len(block) + 1):
            file.write(block)


def measured(words: list[str], folder: Path) -> tuple[float, float, float]:
    """Seconds, processor seconds and the most memory in MB of a command."""
    began = time.perf_counter()
    with open(os.devnull, "wb") as nowhere:
        child = subprocess.Popen(words, stdout=nowhere, cwd=folder)
        _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {child.returncode}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--log", type=int, default=2_000_000_000, help="bytes of the log")
    parser.add_argument("--only", default="", help="names of measures, comma-separated")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / ".git").mkdir()
        run = create_run_dir(folder / ".fsdl", Job("script", "train.py"))
        fsdl = [sys.executable, "-c", SHOW]
        commands = {
            "count": [sys.executable, "-c", COUNT, str(run.events / "rank0.jsonl")],
            "no worker": [*fsdl, "show"],
            "worker": [sys.executable, "-c", KEEP, str(run.path)],
            "show": [*fsdl, "show"],
            "cat": ["cat", str(run.log(0))],
            "logs": [*fsdl, "logs"],
        }
        chosen = chosen_names(options.only, commands)
        if any(name in ("count", "no worker", "worker", "show") for name in chosen):
            write_events(run, options.events)
        write_log(run, options.log if {"cat", "logs"} & {*chosen} else 0)
        sizes = [sum(path.stat().st_size for path in part.iterdir()) / 1e6 for part in (run.events, run.logs)]
        print(f"{options.events:,} events ({sizes[0]:,.0f} MB), a log of {sizes[1]:,.0f} MB")
        print(f"{'':12}{'seconds':>9}{'of CPU':>9}{'MB':>8}{'load':>7}")
        for name in chosen:
            if name == "show":
                write_metrics(run, options.events, 60_000)
            seconds, processor, memory = measured(commands[name], folder)
            print(
                f"{name:12}{seconds:9.2f}{processor:9.2f}{memory:8.0f}{os.getloadavg()[0]:7.1f}", flush=True
            )


if __name__ == "__main__":
    main()
