"""What a notebook waits for that is not training: loading the extension, the table of 1,000 runs, and the
agreement check of a launch.

python bench/bench_notebook.py [--runs 1000] [--rounds 5]

Each number is the median over fresh kernels, timed inside the kernel; a launch cell from its request to the
kernel's being idle again, so with agreement, gates, snapshot, hand-over and the card. Beside them, in the same
kernels: `import torch`, `%load_ext wandb` (the nearest extension that researchers load), and reading the same
1,000 runs with json alone.
"""

import argparse
import json
import math
import os
import random
import subprocess
import tempfile
import time
from pathlib import Path

from side_by_side import medians, print_times, use_test_helpers

from fsdl_dev.cli.init import init_project
from fsdl_dev.core.event_kinds import Checkpoint, Metric, Progress, State
from fsdl_dev.core.job import Job
from fsdl_dev.core.rundir import create_run_dir

use_test_helpers()

from kernel import Kernel  # noqa: E402

CELLS = (
    "#| default_exp study",
    "%load_ext fsdl_dev",
    "#| export\nLR = 1e-3",
    "#| export\ndef helper(x):\n    return x * LR",
    "#| export\ndef train():\n    return helper(1)",
)
LAUNCH = "%%fsdl_launch --on test --as run --no-test\nprint(train())"
LOAD = (
    "import time; _t = time.perf_counter()\nget_ipython().run_line_magic('load_ext',"
    " 'NAME')\nprint('SECONDS', time.perf_counter() - _t)"
)
TABLE = """import time; _t = time.perf_counter()
_table = get_ipython().run_line_magic('fsdl_runs', '--limit 1000'); _text = _table._repr_html_() + repr(_table)
print('SECONDS', time.perf_counter() - _t); assert len(_table) >= RUNS; import sys; assert 'torch' not in sys.modules"""
NAIVE = """import time, json, pathlib; _t = time.perf_counter()
for _run in pathlib.Path(STORE, 'runs').iterdir():
    for _file in (_run / 'events').glob('*.jsonl'):
        for _line in _file.read_text().splitlines(): json.loads(_line)
print('SECONDS', time.perf_counter() - _t)"""


def make_runs(store: Path, count: int) -> None:
    "Runs as a week of work leaves them: most succeeded, some failed, two alive."
    draw = random.Random(0)
    for number in range(count):
        lr = 10 ** draw.uniform(-5, -2)
        run = create_run_dir(
            store,
            Job(
                "cell",
                f"{10 + number % 7}_study.ipynb · Train",
                notebook=f"nbs/{10 + number % 7}_study.ipynb",
                params={"lr": lr, "seed": number},
                tags={"task": "digits", "dataset": "digits@v1", "owner": "ada"},
            ),
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


class TimedKernel(Kernel):
    """A kernel that is left at the first error."""

    patience = 300  # seconds

    def __init__(self, folder: Path):
        super().__init__(folder, extra_arguments=["--IPKernelApp.log_level=ERROR"])

    def words(self, kind: str, content: dict) -> str:
        if kind == "error":
            raise SystemExit("\n".join(content["traceback"]))
        return super().words(kind, content)

    def seconds(self, source: str) -> float:
        """What the cell says that it took."""
        return float(self.run(source).rpartition("SECONDS ")[2].split()[0])


def make_project(folder: Path) -> Path:
    """A committed project whose one notebook agrees with what the kernels will run."""
    init_project(folder, generation=2)
    (folder / "nbs" / "00_train.ipynb").unlink()
    notebook = folder / "nbs" / "00_study.ipynb"
    cells = [
        {
            "cell_type": "code",
            "id": f"c{i}",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": s,
        }
        for i, s in enumerate((*CELLS, LAUNCH))
    ]
    notebook.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    for words in (
        ("init", "-q"),
        ("add", "-A"),
        ("-c", "user.name=b", "-c", "user.email=b@example.org", "commit", "-qm", "start"),
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return notebook


def one_round(folder: Path, runs: int) -> dict[str, float]:
    """Every measurement once, each in a fresh kernel where freshness matters."""
    found = {}
    for label, source in (
        ("%load_ext fsdl_dev", LOAD.replace("NAME", "fsdl_dev")),
        ("%load_ext wandb", LOAD.replace("NAME", "wandb")),
        ("import torch", LOAD.replace("get_ipython().run_line_magic('load_ext', 'NAME')", "import torch")),
    ):
        kernel = TimedKernel(folder)
        found[label] = kernel.seconds(source)
        kernel.stop()
    kernel = TimedKernel(folder)
    for i, source in enumerate(CELLS):
        kernel.run(source, f"c{i}")
    found[f"%fsdl_runs, {runs} runs"] = kernel.seconds(TABLE.replace("RUNS", str(runs)))
    found[f"json alone, {runs} runs"] = kernel.seconds(NAIVE.replace("STORE", repr(os.environ["FSDL_STORE"])))
    time.sleep(1)
    for label in ("launch cell, first in this kernel", "launch cell, nothing changed"):
        start = time.perf_counter()
        kernel.run(LAUNCH, f"c{len(CELLS)}")
        found[label] = time.perf_counter() - start
        kernel.run("run.wait(progress=False); assert run.state == 'succeeded', run.logs()")
    kernel.stop()
    return found


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--runs", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "study"
        notebook = make_project(folder)
        os.environ.update(FSDL_STATE=f"{name}/state", FSDL_STORE=f"{name}/store", FSDL_NOTEBOOK=str(notebook))
        make_runs(Path(name) / "store", chosen.runs)
        times: dict[str, list[float]] = {}
        for number in range(chosen.rounds + 1):
            for label, seconds in one_round(notebook.parent, chosen.runs).items():
                if number:  # the first round warms the file cache
                    times.setdefault(label, []).append(seconds)
        middle = medians(times)
        print_times(f"{chosen.rounds} rounds, medians", times)
        print(
            f"ratio load_ext to import torch: {middle['%load_ext fsdl_dev'] / middle['import torch']:.2f};"
            " %fsdl_runs to json alone:"
            f" {middle[f'%fsdl_runs, {chosen.runs} runs'] / middle[f'json alone, {chosen.runs} runs']:.2f}"
        )


if __name__ == "__main__":
    main()
