"""What travels to a target (engines/remote/runtime): what the worker and jobs import, complete, and no more."""

import ast
import io
import os
import subprocess
import sys
import zipfile

import pytest

import fsdl_dev
from fsdl_dev.core.job import Job, Resources
from fsdl_dev.core.protocol import Module
from fsdl_dev.core.rundir import Placement, create_run_dir, write_json
from fsdl_dev.engines.remote.runtime import imports_of, known_modules, needs_whole, runtime_archive
from fsdl_dev.engines.slurm.inside import SlurmInside
from fsdl_dev.snapshot.blobs import put_blob
from fsdl_dev.snapshot.snapshot import save_snapshot
from fsdl_dev.worker.failures import explain_failure
from fsdl_dev.worker.inside import Inside, inside_name


def parsed_imports(text: str, module: str, known: dict) -> set[str]:
    """The same as imports_of, by the syntax tree, without what only a type checker imports."""
    package = module.split(".") if known[module].name == "__init__.py" else module.split(".")[:-1]
    found, left = set(), [ast.parse(text)]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            left += node.orelse
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *filter(None, [node.module])])
            found.update([base, *(f"{base}.{alias.name}" for alias in node.names)])
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Module"
        ):
            found.add(getattr(Module, node.attr, ""))
    return found & known.keys()


def test_the_pattern_finds_every_import():
    known = known_modules("fsdl_dev")
    for module, file in known.items():
        text = file.read_text(encoding="utf-8")
        missed = parsed_imports(text, module, known) - imports_of(text, module, known)
        assert not missed, f"{module} imports {sorted(missed)}"


@pytest.fixture
def unpacked(tmp_path):
    """The runtime of a run on Slurm, in a folder."""
    zipfile.ZipFile(io.BytesIO(runtime_archive(SlurmInside)[1])).extractall(tmp_path / "runtime")
    return tmp_path / "runtime"


def test_the_far_end_can_import_what_it_has(unpacked):
    """Each module of the launching half that travels, imported from there alone, with what it imports in functions."""
    half = ("core", "worker", "snapshot", "records", "checks", "engines")
    names = [
        ".".join(path.relative_to(unpacked).with_suffix("").parts)
        for path in sorted(unpacked.rglob("*.py"))
        if path.name != "__init__.py" and path.relative_to(unpacked).parts[1] in half
    ]
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "import fsdl_dev; print(fsdl_dev.__file__, 'torch' in sys.modules, 'yaml' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *names],
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        cwd=unpacked,
        text=True,
        capture_output=True,
    )
    assert done.stdout.split() == [str(unpacked / "fsdl_dev" / "__init__.py"), "False", "False"], done.stderr
    assert "fsdl_dev.engines.slurm.inside" in names and not [n for n in names if "slurm.target" in n]


def test_the_runtime_runs_a_job(unpacked, tmp_path):
    """The worker, its agent and two ranks import this package from the archive alone."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(
        "import os, sys, fsdl_dev\nfsdl_dev.log(loss=float(os.environ['RANK']))\n"
        "print(fsdl_dev.__file__, fsdl_dev.Trainer.__module__)\nif os.environ['RANK'] == '1': import fsdl_dev.api\n"
    )
    job = Job("script", "two", script="train.py", resources=Resources(procs=2, gpus=0, max_restarts=0))
    run = create_run_dir(tmp_path / "store", job)
    write_json(run.snapshot_file, {"digest": "none", "code": str(code)})
    placement = Placement(
        "lab", "lab", str(code), str(tmp_path / "store"), str(unpacked), inside=inside_name(SlurmInside)
    )
    own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    write_json(run.path / "placement.json", {**placement.to_dict(), "allocation": "engine"})
    run.set_state(run.writer("launcher"), "queued", "submitted")
    done = subprocess.run(
        [sys.executable, "-P", "-m", Module.WORKER, str(run.path)],
        env={**own, "PYTHONPATH": str(unpacked)},
        cwd=run.path,
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert run.state() == "failed", done.stderr  # rank 1 asks for what was not sent
    failure = explain_failure(run)
    # an editable install of this package, where there is one, finds some of the modules that were not sent
    assert failure and "No module named 'fsdl_dev." in failure.text(), done.stderr
    assert "write `import fsdl_dev." in failure.text()
    assert run.log(0).read_text() == f"{unpacked / 'fsdl_dev' / '__init__.py'} fsdl_dev.train.trainer\n"


def taken(folder, **files: str):
    """A snapshot of files."""
    entries = {
        name.replace("__", "."): {"sha256": put_blob(folder, text.encode())[0], "mode": "100644", "size": 1}
        for name, text in files.items()
    }
    lock = put_blob(folder, b"{}")[0]
    facts = {"git": None, "data": [], "project": {}, "environment": {"lock": lock, "digest": lock}}
    return save_snapshot(folder, {"files": entries, **facts})


def test_a_job_that_asks_for_more_gets_the_whole_package(tmp_path):
    """What a job's code names of this package is there; notebooks that it does not run do not count."""
    notebook = '{"cells": [{"source": ["%load_ext fsdl_dev"]}]}'
    trains = {"model__py": "from fsdl_dev import Trainer, log", "nb__ipynb": notebook}
    cell, other = Job("cell", "a", source="model.fit()"), Job("notebook", "nb", notebook="nb.ipynb")
    assert not needs_whole(cell, taken(tmp_path, **trains)) and needs_whole(other, taken(tmp_path, **trains))
    launches = {**trains, "more__py": "import fsdl_dev as f\n\ndef later():\n    return f.launch('x.py')\n"}
    assert needs_whole(cell, taken(tmp_path, **launches))
    assert needs_whole(Job("cell", "a", source="%run nb.ipynb"), taken(tmp_path, **trains))
    assert needs_whole(
        Job("script", "a", script="a.sh"), taken(tmp_path, a__sh="python -m fsdl_dev.cli.main runs")
    )
    worker, whole = (zipfile.ZipFile(io.BytesIO(runtime_archive(Inside, more)[1])) for more in (False, True))
    assert "fsdl_dev/api.py" in whole.namelist() and "fsdl_dev/api.py" not in worker.namelist()
    public = {f"fsdl_dev/{name.replace('.', '/')}.py" for name in fsdl_dev._WHERE.values()}
    assert public <= {*whole.namelist()}
    size, most = (sum(one.file_size for one in archive.infolist()) for archive in (worker, whole))
    assert size < 0.6 * most, f"{size:,} of {most:,} bytes travel with every run"
