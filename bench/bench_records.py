"""Questions about 100,000 runs, beside mlflow-skinny with the same runs in its own SQLite store.

python bench/bench_records.py [--runs 100000] [--mlflow 5000] [--repeat 5]

Each run has 20 parameters, 10 metrics and 4 tags. Ours are run directories with the `summary.json` that an ended
run has; mlflow's are rows put into the tables that its own client made (through its client they would take hours).
It has fewer of them, since its sort by a metric takes many minutes at 100,000: the ratios are not scaled.
Every number is the median over the repeats, index warm, in seconds of processor time, so that other work on the machine
does not count; the last lines are a first reading and fresh processes.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from fsdl_dev.core.rundir import RunDir
from fsdl_dev.records.lineage import keep_summary
from fsdl_dev.records.search.store import RunStore
from fsdl_dev.records.table import RunRow

PARAMS = [f"p{i}" for i in range(18)]
METRICS = [f"m{i}" for i in range(8)]


def facts(count: int):
    "Name, moment, parameters, metrics and tags of each run, all ended long ago."
    draw = random.Random(0)
    for number in range(count):
        seconds = number * 60
        day, hour, minute = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
        date = f"20{10 + day // 336:02d}{1 + day // 28 % 12:02d}{1 + day % 28:02d}"
        name = f"{date}-{hour:02d}{minute:02d}00000-otter-{number}"
        params = {"lr": 10 ** draw.uniform(-5, -1), "width": draw.choice([64, 128, 256])}
        params |= {name: draw.random() for name in PARAMS}
        metrics = {"val/acc": draw.random(), "val/loss": draw.random()} | {
            name: draw.random() for name in METRICS
        }
        tags = {"owner": draw.choice(["ada", "grace", "alan"]), "task": draw.choice(["digits", "text"])}
        yield name, params, metrics, tags | {"dataset": f"d{number % 50}", "status": "exploring"}


def digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def make_store(store: Path, count: int) -> None:
    for name, params, metrics, tags in facts(count):
        run = RunDir(store / "runs" / name)
        run.path.mkdir(parents=True)
        row = RunRow(name, "succeeded", "exit code 0", "script", "train.py", job="train.py", seconds=60.0)
        own = asdict(row) | {"params": params, "metrics": metrics, "tags": tags}
        own |= {
            "bests": {"val/acc": metrics["val/acc"]},
            "best": ("val/acc", metrics["val/acc"], 9),
            "start": 0.0,
            "links": [
                ["used", "code", "train.py", "", digest_of(name[:8])],
                ["used", "data", tags["dataset"], "train 1,258", digest_of(tags["dataset"])],
                ["made", "checkpoint", "checkpoints/last.ckpt", "", digest_of(name)],
            ],
        }
        keep_summary(run, own)


def make_mlflow(file: Path, count: int):
    "A client of a store with the same runs."
    import sqlite3

    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{file}")
    client.create_run("0")
    with sqlite3.connect(file) as base:
        base.execute("PRAGMA synchronous = OFF")
        shape = dict(zip(columns(base, "runs"), base.execute("SELECT * FROM runs").fetchone()))
        tables: dict[str, list[dict]] = {name: [] for name in ("runs", "params", "latest_metrics", "tags")}
        for number, (name, params, metrics, tags) in enumerate(facts(count)):
            uuid, moment = f"{number:032x}", 10**12 + number
            tables["runs"].append(
                shape | {"run_uuid": uuid, "name": name, "status": "FINISHED", "start_time": moment}
            )
            tables["params"] += [{"key": k, "value": str(v), "run_uuid": uuid} for k, v in params.items()]
            same = {"timestamp": moment, "step": 9, "is_nan": 0, "run_uuid": uuid}
            tables["latest_metrics"] += [{"key": k, "value": v, **same} for k, v in metrics.items()]
            tables["tags"] += [{"key": k, "value": v, "run_uuid": uuid} for k, v in tags.items()]
            if number % 5000 == 4999 or number == count - 1:
                for table, rows in tables.items():
                    names = list(rows[0])
                    places = ", ".join(f":{name}" for name in names)
                    base.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})", rows)
                    rows.clear()
    return client


def columns(base, table: str) -> list[str]:
    return [row[1] for row in base.execute(f"PRAGMA table_info({table})")]


def median(action, repeat: int) -> float:
    "Seconds of processor time, after one that is not counted."
    taken = []
    for _ in range(repeat + 1):
        start = time.process_time()
        action()
        taken.append(time.process_time() - start)
    return statistics.median(taken[1:])


def fresh(code: str, *arguments: str, folder: Path) -> float:
    "Seconds of processor time of a fresh process, from its start to its end."
    start = os.times()
    environment = {**os.environ, "FSDL_STORE": str(folder)}
    subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, env=environment, cwd=folder
    )
    end = os.times()
    return end.children_user + end.children_system - start.children_user - start.children_system


COMMAND = "import sys; from fsdl_dev.cli.main import main; main(sys.argv[1:])"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--mlflow", type=int, default=5_000, help="runs that mlflow has")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder, repeat = Path(text), options.repeat
        start = time.perf_counter()
        make_store(folder, options.runs)
        made = time.perf_counter() - start
        runs = RunStore(folder)
        start = time.perf_counter()
        assert runs.reindex() == options.runs
        first = time.perf_counter() - start
        time.sleep(2.1)  # until the folder's modification time is old enough to be trusted
        twenty = [row.id for row in runs.query(limit=20, verify=False)]
        some = ", ".join(f"'{name}'" for name in twenty)
        start = time.perf_counter()
        client = make_mlflow(folder / "mlflow.sqlite", min(options.mlflow, options.runs))
        filled = time.perf_counter() - start
        search = lambda where="", order=None: client.search_runs(["0"], where, max_results=20, order_by=order)
        every = lambda: [client.get_run(f"{number:032x}") for number in range(20)]
        hard = "val/acc > 0.9 and lr < 1e-3 and owner = ada"
        easy = "metrics.`val/acc` > 0.9 and tags.owner = 'ada' and params.width = '64'"
        pairs = {
            "the newest 20": (lambda: runs.query(limit=20), search),
            "a filter of three": (lambda: runs.query(hard, limit=20), lambda: search(easy)),
            "a filter that nothing fits": (
                lambda: runs.query("val/acc > 2 and owner = ada", limit=20),
                lambda: search("metrics.`val/acc` > 2 and tags.owner = 'ada'"),
            ),
            "sorted by a metric": (
                lambda: runs.query(sort="val/acc", limit=20),
                lambda: search(order=["metrics.`val/acc` DESC"]),
            ),
            "filtered and sorted": (
                lambda: runs.query(hard, sort="val/loss", limit=20),
                lambda: search(easy, ["metrics.`val/loss` ASC"]),
            ),
            "an age and a text": (lambda: runs.query("since = 7d or task ~ dig", limit=20), None),
            "20 side by side": (lambda: runs.query(f"id in ({some})", columns=["lr", "val/acc"]), every),
            "the runs of a dataset": (
                lambda: runs.links(digest_of("d7")[:12]),
                lambda: client.search_runs(["0"], "tags.dataset = 'd7'", max_results=5000),
            ),
            "the run of a checkpoint": (lambda: runs.links(digest_of(twenty[0])[:12]), None),
            "grouped by owner": (lambda: runs.group("owner", ["val/acc"]), None),
        }
        print(f"{options.runs:,} runs made in {made:.0f} s, mlflow's {options.mlflow:,} in {filled:.0f} s")
        print(f"{'question':<28}{'ours':>10}{'mlflow':>10}{'ratio':>8}")
        worst = 0.0
        for name, (ours, theirs) in pairs.items():
            mine = median(ours, repeat)
            other = median(theirs, min(repeat, 3)) if theirs else None
            worst = max(worst, mine)
            print(
                f"{name:<28}{mine:>8.3f} s" + (f"{other:>8.3f} s{other / mine:>7.1f}x" if other else ""),
                flush=True,
            )
        cold = statistics.median(fresh(COMMAND, "runs", folder=folder) for _ in range(3))
        empty = statistics.median(fresh(COMMAND, "--help", folder=folder) for _ in range(3))
        print(f"fsdl runs in a fresh process {cold:.2f} s, of which {empty:.2f} s are what fsdl --help takes")
        print(f"reindex of all summaries {first:.1f} s, {1e6 * first / options.runs:.0f} µs a run")
        met = lambda good: "met" if good else "MISSED"
        print(f"budgets: each question 0.1 s {met(worst < 0.1)}, cold 1 s {met(cold < 1)}")


if __name__ == "__main__":
    main()
