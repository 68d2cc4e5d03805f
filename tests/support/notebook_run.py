"""Running a notebook as nbdev_test does, in a process of its own, and telling whether it has to run at all.

`run_notebook` forks from the server of tests/support/ranks.py, which has imported torch: a third of a second a
notebook. `fingerprint` is the digest of all that a notebook's result depends on here: its cells, every module
of this project that these name in an import or in a string, the modules that those name in turn, the lock and
the interpreter.
"""

import faulthandler
import hashlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from ranks import fork_context, without_main
from repository import PACKAGE, ROOT, Notebook, imported_modules

# an empty file for each notebook that passed, named by its fingerprint
PASSED = ROOT / ".pytest_cache" / "notebooks.d"
NAMED = re.compile(rf"\b{PACKAGE}(?:\.\w+)+")


def run_notebook(path: Path, flags: str, environment: dict[str, str], timeout: float = 600) -> str:
    """Run a notebook's cells and the `slow`, `cuda` and `net` ones that `flags` names; what went wrong, or an
    empty text.
    """
    context = fork_context()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output.txt")
        process = context.Process(target=_run, args=(str(path), flags, environment, str(output), timeout))
        with without_main():
            process.start()
        process.join(timeout)
        late = process.is_alive()
        if late:
            process.kill()
            process.join()
        said = output.read_text(errors="replace")[-8000:] if output.exists() else ""
    return (
        f"still running after {timeout} s\n{said}"
        if late
        else f"exit code {process.exitcode}\n{said}"
        if process.exitcode
        else ""
    )


def _run(path: str, flags: str, environment: dict[str, str], output: str, timeout: float) -> None:
    "In the fork: the caller's environment, output to a file, all cells."
    os.environ.clear()
    os.environ.update(environment, OMP_NUM_THREADS="1")
    file = open(output, "w", buffering=1)
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = file
    faulthandler.dump_traceback_later(0.9 * timeout, file=file)
    # a fork of the server would start its own processes by the server
    multiprocessing.set_start_method(None, force=True)
    os.chdir(ROOT / "nbs")
    import torch
    from nbdev.config import get_config
    from nbdev.test import test_nb

    torch.set_num_threads(1)
    good, _ = test_nb(
        Path(path),
        skip_flags=get_config().tst_flags.split(),
        force_flags=flags.split(),
        basepath=get_config().config_path,
    )
    file.flush()
    sys.exit(0 if good else 1)


def fingerprint(notebook: Notebook, flags: str) -> str:
    "The digest of all that the notebook's result depends on."
    parts = [
        f"{notebook.name} {flags} {sys.version}",
        *((ROOT / "requirements" / name).read_text() for name in ("dev.txt", "torch.txt")),
        (ROOT / "pyproject.toml").read_text(),
    ]
    sources = [cell.source for cell in notebook.cells if cell.kind == "code"]
    wanted, seen = (
        _named("\n".join(sources), notebook.module or "none", [cell.tree for cell in notebook.cells]),
        set(),
    )
    while wanted:
        module = wanted.pop()
        if module in seen:
            continue
        seen.add(module)
        wanted |= _needs(module) - seen
    parts += sources + [
        f"{module} {hashlib.sha256(_file(module).read_bytes()).hexdigest()}" for module in sorted(seen)
    ]
    beside = sorted(p for p in notebook.path.parent.iterdir() if p.is_file() and p.suffix != ".ipynb")
    parts += [f"{p.name} {hashlib.sha256(p.read_bytes()).hexdigest()}" for p in beside]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def has_passed(digest: str) -> bool:
    "Whether the notebook passed here as it is now."
    return (PASSED / digest).exists()


def note_pass(digest: str) -> None:
    "Note that the notebook passed. Marks that no run has asked for in a week go."
    PASSED.mkdir(parents=True, exist_ok=True)
    (PASSED / digest).touch()
    for mark in PASSED.iterdir():
        if time.time() - mark.stat().st_mtime > 7 * 86400:
            mark.unlink(missing_ok=True)


def _file(module: str) -> Path | None:
    "The file of a module of this project; None for a name that is none."
    path = ROOT / Path(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


@cache
def _needs(module: str) -> frozenset[str]:
    "The modules of this project that a module names in an import or in a string."
    import ast

    text, file = _file(module).read_text(), _file(module)
    inner = module.removeprefix(f"{PACKAGE}.") + (".__init__" if file.name == "__init__.py" else "")
    found = _named(text, inner, [ast.parse(text)]) if module != PACKAGE else set()
    return frozenset(found)


def _named(text: str, module: str, trees: list) -> set[str]:
    "The modules of this project that a text names, with the packages around them."
    names = set(NAMED.findall(text))
    public = _public()
    for tree in trees:
        for name, taken in imported_modules(tree, module):
            names |= {name, *(f"{name}.{one}" for one in taken)}
    names |= {
        public[name.rpartition(".")[2]]
        for name in names
        if name.rpartition(".")[0] == PACKAGE and name.rpartition(".")[2] in public
    }
    found = set()
    for name in names:
        # fsdl_dev.core.events.read_events -> fsdl_dev.core.events, fsdl_dev.core, fsdl_dev
        while name.startswith(PACKAGE):
            if _file(name):
                found.add(name)
            name = name.rpartition(".")[0]
    return found


@cache
def _public() -> dict[str, str]:
    "Public name -> the module that it comes from."
    sys.path.insert(0, str(ROOT))
    import fsdl_dev

    return {name: f"{PACKAGE}.{module}" for name, module in fsdl_dev._WHERE.items()}
