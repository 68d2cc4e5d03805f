"""What a snapshot of a 5,000-file repository costs, beside what others do before they launch.

    python bench/bench_snapshot.py [--files 5000] [--repeat 3]

Peers, in the same run on the same files: git's own way (`git add -A && git write-tree` with a fresh index and an
empty object store, then again with the index kept), a copy of the folder (SkyPilot, submitit users), a zip of it
(Ray's working_dir). None of the peers records the environment, strips notebooks or says what differs from the commit.
"""

import argparse
import json
import os
import random
import subprocess
import tempfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path

from side_by_side import medians, print_times

from fsdl_dev.core.settings import Project
from fsdl_dev.snapshot.snapshot import checkout
from fsdl_dev.snapshot.take import take_snapshot


def make_repository(root: Path, count: int) -> None:
    """A repository of Python files of 1 to 16 kB in 100 folders, with a notebook with outputs for every 50 of them."""
    words = [
        "import torch\n",
        "def step(model, batch):\n",
        "    loss = model(batch).mean()\n",
        "    return loss\n",
        "# why\n",
    ]
    draw = random.Random(0)
    for number in range(count):
        folder = root / f"package/part{number % 100}"
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(draw.choice(words) for _ in range(draw.randint(40, 700))) + f"# {number}\n"
        if number % 50:
            (folder / f"module{number}.py").write_text(text)
        else:
            cell = {
                "cell_type": "code",
                "id": "a",
                "metadata": {},
                "source": [text],
                "execution_count": 1,
                "outputs": [{"output_type": "stream", "name": "stdout", "text": [text]}],
            }
            notebook = {"cells": [cell] * 10, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
            (folder / f"notebook{number}.ipynb").write_text(json.dumps(notebook))
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=root, check=True)


def timed(action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(root: Path, scratch: Path, repeat: int) -> dict[str, list[float]]:
    """Seconds of everything, interleaved so that a slow moment of the machine meets all alike."""
    seconds: dict[str, list[float]] = {}

    def note(name, action):
        seconds.setdefault(name, []).append(timed(action))

    for turn in range(repeat):
        place = scratch / f"turn{turn}"
        place.mkdir()
        project = replace(Project(root, "bench"), config={"store": str(place / "store")})
        taken = []
        note("fsdl_dev first", lambda: taken.append(take_snapshot(project)))
        note("fsdl_dev unchanged", lambda: taken.append(take_snapshot(project)))
        assert taken[0] == taken[1] and taken[1].stored == 0
        note("fsdl_dev lay out (first checkout)", lambda: checkout(project.store, taken[0].digest))
        note("fsdl_dev checkout again", lambda: checkout(project.store, taken[0].digest))
        environment = {
            **os.environ,
            "GIT_INDEX_FILE": str(place / "index"),
            "GIT_OBJECT_DIRECTORY": str(place / "objects"),
        }
        (place / "objects").mkdir()

        def by_git():
            subprocess.run(["git", "add", "-A"], cwd=root, env=environment, check=True)
            subprocess.run(
                ["git", "write-tree"], cwd=root, env=environment, check=True, stdout=subprocess.DEVNULL
            )

        note("git add + write-tree first", by_git)
        note("git add + write-tree unchanged", by_git)
        note("cp -r", lambda: subprocess.run(["cp", "-r", str(root), str(place / "copy")], check=True))

        def by_zip():
            with zipfile.ZipFile(place / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
                for folder, folders, names in os.walk(root):
                    folders[:] = [name for name in folders if name != ".git"]
                    for name in names:
                        archive.write(f"{folder}/{name}", os.path.relpath(f"{folder}/{name}", root))

        note(
            "zip (Ray's working_dir)", by_zip
        )  # nothing is deleted in between: ext4 makes files slowly for 5 s after that
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "repository"
        root.mkdir()
        make_repository(root, arguments.files)
        time.sleep(6)  # younger files are racy and read again, by git's rule
        seconds = measure(root, Path(folder), arguments.repeat)
    middle, again = medians(seconds), {name for name in seconds if "unchanged" in name or "again" in name}
    for title, names, base in (
        (f"{arguments.files} files, the first time", seconds.keys() - again, "fsdl_dev first"),
        ("and once more", again, "fsdl_dev unchanged"),
    ):
        print_times(
            f"{title} (median of {arguments.repeat})",
            {name: values for name, values in seconds.items() if name in names},
            base,
        )
    print(
        f"first {middle['fsdl_dev first']:.2f} s (to reach: 2), unchanged {middle['fsdl_dev unchanged']:.3f}"
        " s (to reach: 0.5)"
    )


if __name__ == "__main__":
    main()
