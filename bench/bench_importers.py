"""Importing old runs, beside the readers that the trackers themselves have for the same files.

python bench/bench_importers.py [--runs 50] [--points 2000] [--wandb 5] [--repeat 3]

Each run has so many points of two metrics, and four parameters. Two times of ours are shown: the reading, which is the
peers' work (every point of every run, as Python numbers), and the whole of `import_runs`, which also thins, looks for
secrets and writes a run directory for each. The peers are TensorBoard's EventAccumulator (no limit to its points),
`mlflow.search_runs` with `get_metric_history` of each metric, and `pandas.read_csv`, with the columns of each run as
lists and, as ours has a point for each row, with a record for each row. The package wandb has had no reader of .wandb
files in Python since its datastore moved into its Go program, so ours stands alone there; starting a run of W&B takes
seconds, hence fewer. Seconds of processor time, medians.
"""

import argparse
import logging
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fsdl_dev.importers.write import find_old_runs, import_runs

METRICS = ("loss", "val_acc")


def facts(runs: int, points: int) -> Iterator[tuple[str, dict, list[tuple[float, float]]]]:
    "Name, parameters and values of runs."
    generator = random.Random(0)
    for number in range(runs):
        rate = generator.uniform(0.5, 5) / points
        curve = [
            (math.exp(-rate * step) + generator.random() / 50, 1 - math.exp(-rate * step))
            for step in range(points)
        ]
        yield f"run-{number}", {"lr": rate, "width": 64, "depth": 3, "seed": number}, curve


def make_tensorboard(folder: Path, runs: int, points: int) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for name, _, curve in facts(runs, points):
        writer = SummaryWriter(str(folder / name))
        for step, values in enumerate(curve):
            for metric, value in zip(METRICS, values, strict=True):
                writer.add_scalar(metric, value, step)
        writer.close()


def make_mlflow(file: Path, runs: int, points: int) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(f"sqlite:///{file}")
    experiment = client.create_experiment("old")
    for name, params, curve in facts(runs, points):
        run_id = client.create_run(experiment, run_name=name).info.run_id
        client.log_batch(run_id, params=[Param(key, str(value)) for key, value in params.items()])
        now = int(time.time() * 1000)
        rows = [
            Metric(metric, value, now + step, step)
            for step, values in enumerate(curve)
            for metric, value in zip(METRICS, values, strict=True)
        ]
        for at in range(0, len(rows), 1000):
            client.log_batch(run_id, metrics=rows[at : at + 1000])
        client.set_terminated(run_id)


def make_wandb(folder: Path, runs: int, points: int) -> None:
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    import wandb

    for name, params, curve in facts(runs, points):
        run = wandb.init(project="old", name=name, config=params, dir=str(folder))
        for values in curve:
            run.log(dict(zip(METRICS, values, strict=True)))
        run.finish()


def make_csv(file: Path, runs: int, points: int) -> None:
    with open(file, "w") as table:
        table.write(f"run,step,param.lr,param.width,param.depth,param.seed,{','.join(METRICS)}\n")
        for name, params, curve in facts(runs, points):
            own = ",".join(map(str, params.values()))
            table.writelines(f"{name},{step},{own},{loss},{acc}\n" for step, (loss, acc) in enumerate(curve))


def with_tensorboard(folder: Path) -> int:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    count = 0
    for run in sorted(folder.iterdir()):
        found = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
        for tag in found.Tags()["scalars"]:
            count += len([(one.step, one.wall_time, one.value) for one in found.Scalars(tag)])
    return count


def with_mlflow(file: Path) -> int:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{file}")
    client, count = mlflow.MlflowClient(), 0
    for run_id in mlflow.search_runs(search_all_experiments=True)["run_id"]:
        for metric in METRICS:
            count += len(
                [(one.step, one.timestamp, one.value) for one in client.get_metric_history(run_id, metric)]
            )
    return count


def with_pandas(file: Path) -> int:
    import pandas as pd

    count = 0
    for _, rows in pd.read_csv(file).groupby("run", sort=False):
        columns = [rows[name].tolist() for name in ("step", *METRICS)]
        count += len(columns[0]) * len(METRICS)
    return count


def with_records(file: Path) -> int:
    import pandas as pd

    count = 0
    for _, rows in pd.read_csv(file).groupby("run", sort=False):
        count += len(rows[["step", *METRICS]].to_dict("records")) * len(METRICS)
    return count


def with_ours(kind: str, path: Path) -> int:
    "Each point of each run: what an import reads."
    return sum(len(point.values) for run in find_old_runs(kind, path) for point in run.points())


def timed(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def imported(kind: str, path: Path, root: Path, runs: int) -> float:
    "Seconds of an import into a store of its own."
    with tempfile.TemporaryDirectory(dir=root) as text:
        Path(text, "pyproject.toml").write_text("[project]\nname = 'old'\n[tool.fsdl_dev]\nstore = 'store'\n")
        begun = time.process_time()
        found = import_runs(kind, path, folder=text, say=None)
        took = time.process_time() - begun
        assert len(found.of("new")) == runs, found.to_text()
        return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--points", type=int, default=2_000, help="of each run, with two metrics each")
    parser.add_argument("--wandb", type=int, default=5, help="runs of W&B")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as text:
        root = Path(text)
        makers = {
            "tensorboard": make_tensorboard,
            "mlflow": make_mlflow,
            "csv": make_csv,
            "wandb": make_wandb,
        }
        places = {
            "tensorboard": root / "tb",
            "mlflow": root / "old.db",
            "csv": root / "old.csv",
            "wandb": root / "wb",
        }
        peers = {
            "tensorboard": {"EventAccumulator": with_tensorboard},
            "mlflow": {"search_runs and get_metric_history": with_mlflow},
            "csv": {"pandas.read_csv": with_pandas, "pandas.read_csv, a record for each row": with_records},
            "wandb": {},
        }
        for kind, place in places.items():
            runs = options.wandb if kind == "wandb" else options.runs
            if not runs:
                continue
            if kind in ("tensorboard", "wandb"):
                place.mkdir()
            makers[kind](place, runs, options.points)
            numbers = runs * options.points * len(METRICS)
            assert with_ours(kind, place) == numbers, "a point is missing"  # and the libraries are loaded
            assert all(peer(place) == numbers for peer in peers[kind].values())
            actions = {
                "read": lambda kind=kind, place=place: timed(lambda: with_ours(kind, place)),
                "import": lambda kind=kind, place=place, runs=runs: imported(kind, place, root, runs),
            }
            for name, peer in peers[kind].items():
                actions[name] = lambda peer=peer, place=place: timed(lambda: peer(place))
            every = [{name: action() for name, action in actions.items()} for _ in range(options.repeat)]
            times = {name: statistics.median(one[name] for one in every) for name in actions}
            read, whole = times.pop("read"), times.pop("import")
            print(
                f"{kind}: {runs} runs, {numbers:,} numbers: reading {read:.2f} s, import_runs {whole:.2f} s"
            )
            for name, theirs in times.items():
                ratios = f"reading takes {read / theirs:.2f} of its time, the import {whole / theirs:.2f}"
                print(f"  {name}: {theirs:.2f} s; {ratios}", flush=True)


if __name__ == "__main__":
    main()
