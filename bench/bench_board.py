"""The board of 10,000 runs, beside a table of the same runs written by mlflow-skinny.

python bench/bench_board.py [--runs 10000] [--mlflow 2000] [--repeat 3]

Each run has 20 parameters, 10 metrics and 4 tags (those of bench_records.py). Written are the front page, the page of
all runs, three saved views and the plain pages; runs' own pages are measured apart, for runs with curves. The peer has
no page of its own that a team opens without a server: what is measured of it is the nearest thing, `mlflow.search_runs`
of all runs as a DataFrame and its `to_html`, from scratch, since it has no way to write only what changed. It has
fewer runs, because its search takes a minute at 10,000: the ratio is for each run. Seconds of processor time, medians.
"""

import argparse
import math
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from bench_records import facts, make_mlflow, make_store, median

from fsdl_dev.board.settings import read_board
from fsdl_dev.board.write import Board
from fsdl_dev.core.event_kinds import Checkpoint, Metric
from fsdl_dev.core.job import Job
from fsdl_dev.core.rundir import RunDir, create_run_dir
from fsdl_dev.core.settings import Project
from fsdl_dev.records.lineage import keep_summary
from fsdl_dev.records.table import RunRow

VIEWS = {"good": "val/acc > 0.99", "ada": "owner = ada", "wide": {"where": "width = 256", "sort": "val/acc"}}


def board_of(root: Path, store: Path, pages: int = 0) -> Board:
    config = {"store": str(store), "board": {"views": VIEWS if not pages else {}, "pages": pages}}
    return Board(Project(root, "bench", config=config), root / "board", read_board(config))


def timed(action) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def add_run(store: Path, number: int) -> None:
    "One more run that has ended."
    name, params, metrics, tags = next(islice(facts(1), 1))
    run = RunDir(store / "runs" / f"20990101-0000{number:05}-otter-new{number}")
    run.path.mkdir()
    row = RunRow(run.id, "succeeded", "exit code 0", "script", "train.py", job="train.py", seconds=60.0)
    own = asdict(row) | {"params": params, "metrics": metrics, "tags": tags, "start": 0.0, "links": []}
    keep_summary(run, own | {"bests": {"val/acc": 0.5}, "best": ("val/acc", 0.5, 9)})


def run_with_curves(store: Path, rate: float) -> None:
    run = create_run_dir(store, Job("script", "train.py", script="train.py", params={"lr": rate}))
    worker, rank = run.writer("worker"), run.writer("rank0", 0)
    for state in ("queued", "starting", "running"):
        run.set_state(worker, state, "bench")
    for step in range(1, 400):
        loss = math.exp(-rate * step)
        rank.write(Metric(step=step, values={"train_loss": loss, "val_acc": 1 - loss}))
    rank.write(Checkpoint(path="a.ckpt", step=399, metric="val_acc", mode="max", value=1 - loss, best=True))
    run.set_state(worker, "succeeded", "finished")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--mlflow", type=int, default=2_000, help="runs that mlflow has")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        root, store = Path(text), Path(text, "store")
        make_store(store, options.runs)
        board = board_of(root, store)
        board.runs.query(limit=1)  # the index, which every command shares
        whole = []
        for _ in range(options.repeat):
            shutil.rmtree(root / "board", ignore_errors=True)
            whole.append(timed(board_of(root, store).write))
        size = sum(path.stat().st_size for path in (root / "board").rglob("*.html"))
        print(
            f"{options.runs:,} runs, the whole board: {statistics.median(whole):.2f} s, {size / 1e6:.1f} MB of pages"
        )
        idle, one, apart = [], [], []
        board = board_of(root, store)
        board.write()
        for number in range(options.repeat):
            idle.append(timed(board.write))
            add_run(store, 2 * number)
            one.append(timed(board.write))
            add_run(store, 2 * number + 1)
            apart.append(timed(board_of(root, store).write))
            board.write()
        print(f"nothing new: {statistics.median(idle):.3f} s")
        print(
            f"one new run: {statistics.median(one):.3f} s; by another process: {statistics.median(apart):.3f} s"
        )
        curves = root / "curves"
        for number in range(40):
            run_with_curves(curves, 0.001 * (number + 1))
        own = timed(board_of(root / "apart", curves, pages=100).write)
        print(f"40 runs with 400 points, each with its own page: {own / 40:.3f} s a run")

        import mlflow

        make_mlflow(root / "mlflow.sqlite", options.mlflow)
        mlflow.set_tracking_uri(f"sqlite:///{root / 'mlflow.sqlite'}")
        every = lambda: mlflow.search_runs(["0"], max_results=options.mlflow).to_html()
        theirs = median(every, 1)
        ratio = (theirs / options.mlflow) / (statistics.median(whole) / options.runs)
        print(f"mlflow.search_runs(...).to_html() of {options.mlflow:,} runs: {theirs:.2f} s")
        print(f"for each run the board takes {1 / ratio:.2f} of mlflow's time ({ratio:.1f} times as fast)")


if __name__ == "__main__":
    main()
