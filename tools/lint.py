"""Run every static check, each in one line: `python tools/lint.py [NAME ...]`. Exits with 1 if one failed.

The output of a check that failed follows its line. Settings of the tools are in pyproject.toml.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from complexipy import file_complexity

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
SOURCES = ("nbs", "fsdl_dev/__init__.py", "tests", "tools", "bench")  # the rest of fsdl_dev is generated
NO_PROSE = (".png", ".gif", ".svg", ".gz", ".json", ".yaml", "requirements/dev.txt", "LICENSE")
MOST_LINES = 40  # of one check's output
MOST_COMPLEX = 20  # cognitive complexity of a function, as complexipy counts it
STRICTER = dict.fromkeys(("agreement", "core", "launcher", "records"), 15)  # folders that all else stands on


def run(program: str, *arguments: str, cwd: Path = ROOT) -> tuple[bool, str]:
    """Run a program of this environment; return whether it succeeded, and its output."""
    done = subprocess.run([str(BIN / program), *arguments], cwd=cwd, text=True, capture_output=True)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def tracked(*patterns: str) -> list[str]:
    """Files that git knows, or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout.splitlines()
    return sorted(name for name in set(listed) if (ROOT / name).is_file())


def spelling() -> tuple[bool, str]:
    """Check texts, and the sources of notebooks' cells: not their outputs."""
    with tempfile.TemporaryDirectory() as folder:
        for name in tracked():
            if name.endswith(NO_PROSE) or (name.startswith("fsdl_dev/") and name.endswith(".py")):
                continue
            text = (ROOT / name).read_text(encoding="utf-8")
            if name.endswith(".ipynb"):
                cells = json.loads(text)["cells"]
                text = "\n".join(f"# cell {n}\n{''.join(cell['source'])}" for n, cell in enumerate(cells))
            copy = Path(folder, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text, encoding="utf-8")
        toml = str(ROOT / "pyproject.toml")
        return run("codespell", "--toml", toml, "--check-hidden", ".", cwd=Path(folder))


def complexity() -> tuple[bool, str]:
    """Find the functions that are too complex for their folder."""
    wrong = []
    for name in tracked("fsdl_dev/*.py"):
        if name.endswith("_modidx.py"):
            continue
        most = STRICTER.get(Path(name).parts[1], MOST_COMPLEX)
        wrong += [
            f"{name} {function.name}: cognitive complexity {function.complexity}, at most {most}:"
            " return early, give its rules or steps names, or give what travels a type"
            for function in file_complexity(str(ROOT / name)).functions
            if function.complexity > most
        ]
    return not wrong, "\n".join(wrong)


CHECKS: dict[str, Callable[[], tuple[bool, str]]] = {
    "ruff": lambda: run("ruff", "check", "--quiet", "--output-format=concise", *SOURCES, "fsdl_dev"),
    "format": lambda: run("ruff", "format", "--check", "--quiet", "--output-format=concise", *SOURCES),
    "layers": lambda: run("lint-imports", "--no-cache"),
    "types": lambda: run("basedpyright", "--level", "error"),
    "spelling": spelling,
    "complexity": complexity,
    "shell": lambda: run("shellcheck", *tracked("*.sh", ".ci/run")),
}


def main() -> int:
    names = sys.argv[1:] or list(CHECKS)
    if unknown := [name for name in names if name not in CHECKS]:
        print(f"lint: no check {', '.join(unknown)}; one of: {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    failed, began = [], time.monotonic()
    pool = ThreadPoolExecutor(2)  # types need a minute of one processor; the others run beside them
    checks = {pool.submit(CHECKS[name]): name for name in sorted(names, key=lambda name: name != "types")}
    for check in as_completed(checks):
        name, (passed, output) = checks[check], check.result()
        lines = output.splitlines()
        verdict = "ok" if passed else f"FAILED, {len(lines)} lines"
        print(f"lint: {name:<10} {verdict} (after {time.monotonic() - began:.1f} s)", flush=True)
        if not passed:
            failed.append(name)
            print("\n".join(f"  {line}" for line in lines[-MOST_LINES:]), flush=True)
    if failed:
        print(f"lint: {', '.join(failed)} failed; ruff check --fix and ruff format repair some of it")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
