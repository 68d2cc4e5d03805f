"""The table of runs with 1,000 of them, in a fresh process, beside what one would do without an index.

python bench/bench_runs.py [--runs 1000] [--repeat 5]

Each run has about 120 events, 5 of them of a tracker or checkpoint; 2 runs are alive. Every number is the
median over fresh Python processes, from the first import to the text of the table. "naive" reads every event
file with json and pandas; "mlflow" (only where it is installed) searches the same runs in its SQLite store.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from side_by_side import medians, print_times

from fsdl_dev.core.event_kinds import Checkpoint, Metric, Progress, State
from fsdl_dev.core.rundir import create_run_dir

OURS = """
import sys, time; start = time.perf_counter()
from fsdl_dev.records.search.store import RunStore
table = RunStore(sys.argv[1]).query()
text = table.to_text(120) + table._repr_html_()
print(time.perf_counter() - start, len(table))
assert "pandas" not in sys.modules and "torch" not in sys.modules
"""
NAIVE = """
import sys, time; start = time.perf_counter()
import json, pathlib, pandas
rows = []
for folder in sorted(pathlib.Path(sys.argv[1], "runs").iterdir()):
    row = {"id": folder.name, **json.loads((folder / "job.json").read_text())["params"]}
    for file in (folder / "events").glob("*.jsonl"):
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event["kind"] == "metric": row.update(event["values"])
            if event["kind"] == "state": row["state"] = event["state"]
    rows.append(row)
text = pandas.DataFrame(rows).to_string()
print(time.perf_counter() - start, len(rows))
"""
MLFLOW = """
import sys, time; start = time.perf_counter()
import mlflow
client = mlflow.MlflowClient("sqlite:///" + sys.argv[1] + "/mlflow.sqlite")
found = client.search_runs(["0"], max_results=5000)
text = "\\n".join(f"{r.info.run_name} {r.info.status} {r.data.metrics} {r.data.params}" for r in found)
print(time.perf_counter() - start, len(found))
"""


def make_runs(store: Path, count: int) -> None:
    "Runs as a week of work leaves them: most succeeded, some failed, two alive."
    draw = random.Random(0)
    for number in range(count):
        lr = 10 ** draw.uniform(-5, -2)
        run = create_run_dir(
            store,
            {
                "kind": "cell",
                "name": f"{10 + number % 7}_study.ipynb · Train",
                "notebook": f"nbs/{10 + number % 7}_study.ipynb",
                "target": "local",
                "params": {"lr": lr, "seed": number},
                "tags": {"task": "digits", "dataset": "digits@v1", "owner": "ada"},
            },
        )
        worker, rank = run.writer("worker"), run.writer("rank0", rank=0)
        end = "alive" if number >= count - 2 else draw.choice(["succeeded"] * 8 + ["failed", "cancelled"])
        for state in ("queued", "starting", "running"):
            worker.write(State(state=state, reason="example"))
        for step in range(0, 1000, 10):
            rank.write(
                Metric(
                    step=step,
                    epoch=step // 200,
                    values={
                        "train_loss": 2 * math.exp(-step / 300) + draw.random() / 10,
                        "val_acc": 1 - math.exp(-step / 200),
                    },
                )
            )
        for step in range(0, 1000, 100):
            rank.write(Progress(step=step, total=1000, epoch=step // 200, epochs=5, stage="train", rate=40.0))
        for step in range(200, 1001, 200):
            rank.write(
                Checkpoint(
                    path=f"checkpoints/{step}.ckpt",
                    step=step,
                    epoch=step // 200,
                    metric="val_acc",
                    value=1 - math.exp(-step / 200),
                    mode="max",
                    bytes=5_000_000,
                    sha256="0" * 64,
                    best=True,
                )
            )
        if end != "alive":
            worker.write(State(state=end, reason="exit code 0", exit_code=0))
        for writer in (worker, rank):
            writer.close()


def fill_mlflow(store: Path, count: int) -> None:
    "The same number of runs with the same number of last metrics and parameters."
    import mlflow
    from mlflow.entities import Metric as Value
    from mlflow.entities import Param

    client = mlflow.MlflowClient(f"sqlite:///{store}/mlflow.sqlite")
    for number in range(count):
        run = client.create_run("0")
        client.log_batch(
            run.info.run_id,
            [Value("train_loss", 0.1, 0, 1), Value("val_acc", 0.9, 0, 1)],
            [Param("lr", "0.1"), Param("seed", str(number))],
        )
        client.set_terminated(run.info.run_id)


def fresh(code: str, store: Path, repeat: int) -> list[float]:
    "Seconds of the code in fresh processes, modules compiled once before."
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(store / "pycache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-c", code, str(store)], capture_output=True, check=True, env=environment)
    taken = []
    for _ in range(repeat):
        answer = subprocess.run(
            [sys.executable, "-c", code, str(store)],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        ).stdout.split()
        taken.append(float(answer[0]))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        make_runs(store, options.runs)
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", OURS, str(store)], check=True, capture_output=True)
        cold = time.perf_counter() - start
        warm = "fsdl runs, index warm"
        times = {
            warm: fresh(OURS, store, options.repeat),
            "fsdl runs, no index yet": [cold],
            "naive: json and pandas": fresh(NAIVE, store, options.repeat),
        }
        if find_spec("mlflow"):
            fill_mlflow(store, options.runs)
            times["mlflow on SQLite"] = fresh(MLFLOW, store, options.repeat)
        print_times(
            f"{options.runs:,} runs, import to table, median of {options.repeat} processes", times, warm
        )
        middle = medians(times)
        print(json.dumps({name: round(seconds, 4) for name, seconds in middle.items()}))
        print(f"budget 0.2 s: {'met' if middle[warm] < 0.2 else 'MISSED'}")


if __name__ == "__main__":
    main()
