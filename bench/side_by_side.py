"""What the measurements share: the script whose first line is waited for, a project for it, turns that are
taken fairly, and the table that is printed.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users' Python keeps what it compiled
# writes down when it came to its first line, in the file that its argument names
TRIVIAL = (
    "import sys, time\nopen(sys.argv[1], 'w').write(repr(time.time()))\nprint('first line', flush=True)\n"
)


def use_test_helpers() -> None:
    """Let the clusters and servers of the tests be imported: tests/support/sshd.py, slurm_cluster.py and so on."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))


def make_project(folder: Path, pyproject: str = "", ignore: str = "", **files: str) -> None:
    """A git repository with the trivial script, ready for a launch; nothing is committed."""
    folder.mkdir()
    for words in (
        ("init", "-q"),
        ("config", "user.email", "bench@example.org"),
        ("config", "user.name", "bench"),
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)
    (folder / ".gitignore").write_text(f"{ignore}.fsdl\n")
    (folder / "trivial.py").write_text(TRIVIAL)
    if pyproject:
        (folder / "pyproject.toml").write_text(pyproject)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def chosen_names(given: str, known: Mapping[str, object]) -> list[str]:
    """Names from the command line, comma-separated; all that there are where none was given."""
    names = [name for name in given.split(",") if name] or list(known)
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"there is no {', '.join(unknown)} here; there is {', '.join(known)}")
    return names


def measure(
    measures: Mapping[str, Callable[[], float]], rounds: int, rotate: bool = False
) -> dict[str, list[float]]:
    """Take every measure once in a round, in turn, so that a busy machine is equally unkind to all; the first
    round warms up and does not count.

    rotate: another one begins each round.
    """
    names, times = list(measures), {name: [] for name in measures}
    for number in range(rounds + 1):
        first = number % len(names) if rotate else 0
        for name in names[first:] + names[:first]:
            seconds = measures[name]()
            if number:
                times[name].append(seconds)
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of each."""
    return {name: statistics.median(values) for name, values in times.items()}


def print_times(
    title: str, times: Mapping[str, list[float]], base: str = "", difference: bool = False
) -> None:
    """Median, least and most of each; beside them the ratio to the median of `base` where that was measured, or
    the difference from it.
    """
    print(f"\n{title}")
    middle, width = medians(times), max(map(len, times), default=0)
    for name, values in times.items():
        against = ""
        if base in middle:
            against = (
                f"{middle[name] - middle[base]:+6.3f} s against {base}"
                if difference
                else f"{middle[name] / middle[base]:6.2f} of {base}"
            )
        print(
            f"  {name:<{width}} {middle[name]:8.3f} s   {min(values):6.3f} to {max(values):6.3f}   {against}".rstrip()
        )
