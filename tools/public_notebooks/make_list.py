"""List the notebooks of git repositories for play.py: `make_list.py FOLDER NAME... > LIST.json`.

FOLDER/NAME is a clone (or FOLDER/NAME/repo). A notebook with `#| default_exp` and an exported cell is "nbdev",
another Python one "plain"; notebooks with more than 100 kB of code or without any are left out.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

LARGEST = 4_000_000  # bytes of a notebook, with its outputs
LONGEST = 100_000  # characters of its code


def git(folder: Path, *arguments: str) -> str:
    """What git says of a repository."""
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, errors="replace"
    ).stdout


def clone_of(folder: Path, name: str) -> Path:
    """The git folder of a name."""
    inner = folder / name / "repo"
    return inner if inner.exists() else folder / name


def kind_of(text: str) -> str | None:
    """`nbdev`, `plain`, or None for what has no code."""
    try:
        cells = ["".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
    except (ValueError, KeyError):
        return None
    if not cells or sum(map(len, cells)) > LONGEST:
        return None
    directives = ("exports?", "default_exp")
    found = [any(re.search(rf"^#\s*\|?\s*{d}\b", cell, re.M) for cell in cells) for d in directives]
    return "nbdev" if all(found) else "plain"


def notebooks(folder: Path, name: str) -> list[dict]:
    """The notebooks of one repository."""
    found, repo = [], clone_of(folder, name)
    for line in git(repo, "ls-tree", "-r", "-l", "-z", "HEAD").split("\0"):
        about, _, path = line.partition("\t")
        if not path.endswith(".ipynb"):
            continue
        _, kind, sha, size = about.split()
        if kind != "blob" or not size.isdigit() or int(size) > LARGEST:
            continue
        if wanted := kind_of(git(repo, "cat-file", "blob", sha)):
            found.append({"repo": name, "kind": wanted, "path": path})
    return found


if __name__ == "__main__":
    rows = [row for name in sys.argv[2:] for row in notebooks(Path(sys.argv[1]), name)]
    print(json.dumps(rows, indent=1))
