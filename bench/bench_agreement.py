"""What the agreement check costs: a notebook of 200 exported cells in a project of 100 notebooks.

    python bench/bench_agreement.py [--rounds 3] [--cells 200] [--notebooks 100]

In a kernel: the first check of `%fsdl_check`, a later one with nothing changed, and an empty cell with and without
our record of what ran. Beside them what a user would do by hand: `nbdev_export` and `python -c "import package"`.
The aims: 3 s, 0.3 s, and 20 ms for an empty cell.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_notebook import TimedKernel
from side_by_side import print_times

from fsdl_dev.cli.init import init_project

CHECK = """
import time; _t = time.perf_counter()
from fsdl_dev.agreement.agreement import prepare_launch
_answer = prepare_launch(get_ipython())
assert _answer.ok, _answer.checks
print('SECONDS', time.perf_counter() - _t)
"""


def notebook(path: Path, module: str, cells: int) -> list[str]:
    """Write a notebook of functions, arrays and constants; its exported cells."""
    sources = [f"#| default_exp {module}", "#| export\nimport numpy as np"]
    for number in range(cells):
        kind = (
            f"def f{number}(x=1):\n    return x + {number}",
            f"W{number} = np.arange(1000) * {number}",
            f"C{number} = {{'lr': {number}, 'layers': [1, 2, 3]}}",
        )[number % 3]
        sources.append(f"#| export\n{kind}")
    entries = [
        {
            "cell_type": "code",
            "id": f"c{i}",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": s,
        }
        for i, s in enumerate([*sources, "%%fsdl_launch\nf0()"])
    ]
    path.write_text(json.dumps({"cells": entries, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return sources


def empty_cell(kernel: TimedKernel) -> float:
    """Seconds that the kernel takes for a cell that does nothing; the median of twenty."""
    took = []
    for _ in range(20):
        start = time.perf_counter()
        kernel.run("pass")
        took.append(time.perf_counter() - start)
    return sorted(took)[10]


def one_round(folder: Path, cells: int, notebooks: int) -> dict[str, float]:
    """Every measurement once, in a new project and a fresh kernel."""
    init_project(folder, generation=2)
    (folder / "nbs/00_train.ipynb").unlink()
    for number in range(1, notebooks):
        notebook(folder / f"nbs/{number:03}_other.ipynb", f"other{number}", 5)
    sources = notebook(folder / "nbs/000_study.ipynb", "study", cells)
    os.environ["FSDL_NOTEBOOK"] = str(folder / "nbs/000_study.ipynb")
    kernel, found = TimedKernel(folder / "nbs"), {}
    found["an empty cell, without us"] = empty_cell(kernel)
    kernel.run("%load_ext fsdl_dev")
    for index, source in enumerate(sources):
        kernel.run(source, f"c{index}")
    found["an empty cell, with our record"] = empty_cell(kernel)
    start = time.perf_counter()
    tool = str(Path(sys.executable).parent / "nbdev_export")
    subprocess.run([tool], cwd=folder, check=True)
    package = next(p.parent.name for p in folder.glob("*/study.py"))
    subprocess.run([sys.executable, "-c", f"import {package}.study"], cwd=folder, check=True)
    found["by hand: export and import"] = time.perf_counter() - start
    for path in folder.glob(f"{package}/*.py"):
        if path.name != "__init__.py":
            path.unlink()
    found["first check, with the export"] = kernel.seconds(CHECK)
    found["later check"] = kernel.seconds(CHECK)
    kernel.run("#| export\nC2['lr'] = 2", "c4")
    kernel.run(sources[4], "c4")
    found["check after a cell ran again"] = kernel.seconds(CHECK)
    kernel.stop()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--notebooks", type=int, default=100)
    asked = parser.parse_args()
    times: dict[str, list[float]] = {}
    for _ in range(asked.rounds):
        with tempfile.TemporaryDirectory() as place:
            for name, seconds in one_round(Path(place, "project"), asked.cells, asked.notebooks).items():
                times.setdefault(name, []).append(seconds)
    print_times(
        f"{asked.cells} exported cells, {asked.notebooks} notebooks", times, "by hand: export and import"
    )


if __name__ == "__main__":
    main()
