"""Each template of `fsdl new`: made, launched by the command that it prints, tested, its notebooks executed, its
documentation built. RECORD=1 writes what that took into templates/results.json, which the documentation shows.
"""

import datetime
import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner
from nbclient import NotebookClient
from quickstart import ThisKernelManager
from repository import ROOT, tracked_files
from wheels import build_wheel, install_beside, installed_data

import fsdl_dev
from fsdl_dev.cli.main import main
from fsdl_dev.cli.project import new as new_module
from fsdl_dev.cli.project.template import find_template, read_templates

TEMPLATES = ROOT / "templates"
RESULTS = TEMPLATES / "results.json"
BIN = Path(sys.executable).parent
DOCS = """
import sys
from pathlib import Path
from nbdev.quarto import nbdev_sidebar, refresh_quarto_yml
from nbdev.serve import proc_nbs
refresh_quarto_yml()
nbdev_sidebar.__wrapped__()
proc_nbs()
sys.path.insert(0, sys.argv[1])
from docs_preview.site import build
print(build(Path("_proc"), Path("_docs")), "pages")
"""


def surroundings() -> dict[str, str]:
    """A shell in which this fsdl_dev is installed, and nothing can be downloaded."""
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess:
    """Run a command that must succeed."""
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=cwd, env=surroundings(), text=True, capture_output=True, timeout=900)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done


def fsdl(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess:
    return run(sys.executable, "-m", "fsdl_dev", *words, cwd=cwd)


class OwnSocketKernel(ThisKernelManager):
    """A kernel by sockets of files: of ports, another kernel that starts at the same moment may take the same."""

    def __init__(self, **options):
        super().__init__(transport="ipc", ip=os.path.join(tempfile.mkdtemp(), "kernel"), **options)


def execute(notebook: Path) -> None:
    """All cells from top to bottom, as a person runs them: launch cells launch."""
    read = nbformat.read(notebook, as_version=4)
    place = {"metadata": {"path": str(notebook.parent)}}
    client = NotebookClient(
        read, kernel_manager_class=OwnSocketKernel, timeout=900, startup_timeout=300, resources=place
    )
    client.execute(env={**surroundings(), "FSDL_NOTEBOOK": str(notebook)})


def launches(notebook: Path) -> bool:
    return any(
        cell.source.startswith("%%fsdl_launch") for cell in nbformat.read(notebook, as_version=4).cells
    )


def record(name: str, found: dict) -> None:
    if os.environ.get("RECORD"):
        known = json.loads(RESULTS.read_text())
        RESULTS.write_text(json.dumps({**known, name: found}, indent=1, sort_keys=True) + "\n")


def try_template(name: str, folder: Path, found: dict) -> None:
    """Make, launch, test, execute and document it; what was found is filled in on the way."""
    made = fsdl("new", "study", "--template", name, cwd=folder)
    launch = re.search(r"(?m)^next: fsdl (.+)$", made.stderr)[1].split()
    project = folder / "study"
    if name == "blank":  # of the others the notebooks launch, which takes as long
        assert json.loads(fsdl(*launch, "--json", cwd=folder).stdout)["state"] == "succeeded"
    started = time.monotonic()
    run("make", "test", cwd=project)
    found["test_seconds"] = round(time.monotonic() - started, 1)
    changed = run("git", "status", "--porcelain", "--", "study", cwd=project).stdout
    assert changed == "", "the first commit has the package"
    for notebook in filter(launches, sorted(project.glob("nbs/*.ipynb"))):
        execute(notebook)
    rows = fsdl_dev.runs(limit=None, folder=project)
    runs = [fsdl_dev.load_run(row.id, project).wait(progress=False) for row in rows]
    assert {one.state for one in runs} == {"succeeded"}, [(one.words, one.state) for one in runs]
    first = min(runs, key=lambda one: one.id)
    found |= {"runs": len(runs), "launch_seconds": round(first.seconds, 1)}
    found["memory_gb"] = round((first.view.resources.rss or 0) / 1e9, 2)
    found["metrics"] = {key: round(value, 4) for key, value in first.facts.metrics.items()}
    run(sys.executable, "-c", DOCS, ROOT / "tools", cwd=project)
    pages = {path.stem for path in (project / "_docs").rglob("*.html")}
    assert {re.sub(r"^\d+_", "", path.stem) for path in project.glob("nbs/*.ipynb")} <= pages, sorted(pages)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", read_templates())
def test_template(name, tmp_path, monkeypatch):
    monkeypatch.delenv("FSDL_STORE")  # the project's own, as a person has it
    missing = find_template(name).missing()
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    found = {"when": datetime.date.today().isoformat(), "version": fsdl_dev.__version__}
    found["machine"] = f"{os.cpu_count()} CPU cores"
    try:
        try_template(name, tmp_path, found)
    except BaseException as error:
        record(name, {**found, "result": f"failed: {type(error).__name__}"})
        raise
    record(name, {**found, "result": "passed"})


@pytest.mark.slow
def test_a_project_of_nbdev_3_is_exported_by_it(nbdev3_python, tmp_path):
    fsdl("new", "study", "--template", "finetune-vision", "--nbdev", "3", cwd=tmp_path)
    project = tmp_path / "study"
    assert not (project / "settings.ini").exists()
    assert "@nbdev-export" in (project / "Makefile").read_text()
    assert re.search(r"(?m)^nbdev==3\.", (project / "requirements" / "dev.txt").read_text())
    run(nbdev3_python.with_name("nbdev-export"), cwd=project)
    assert {"data.py", "model.py", "train.py"} <= {path.name for path in (project / "study").glob("*.py")}
    run(nbdev3_python.with_name("nbdev-clean"), cwd=project)
    changed = run("git", "status", "--porcelain", "--", "nbs", cwd=project).stdout
    assert changed == "", "the notebooks are clean as they are made"


def ask(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, list(words), prog_name="fsdl")
    return done.exit_code, re.sub(r"\s+", " ", done.output)


@pytest.mark.parametrize(
    "name, words",
    {
        "3d-nets": "fsdl new project_3d_nets --template evaluate",
        "class": "Python has a word of that name",
        "json": "'json' is a module of Python itself, which the project would hide",
        "timm": "'timm' is an installed package",
        "nbs": "a folder of the project itself",
        "größe": "Python could not import it",
        "full": "is there already, and has files in it",
        "file": "is there already, and is no folder",
        "no/such/name with blanks": "name_with_blanks",
    }.items(),
)
def test_a_name_that_cannot_be_taken(name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    status, said = ask("new", name, "--template", "evaluate")
    assert status == 2 and words in said and "fix: fsdl new" in said, said
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_folder_is_taken_and_an_unknown_template_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, said = ask("new", "study", "-t", "vision")
    assert status == 2 and "There is no template 'vision'" in said and "finetune-vision" in said, said
    (tmp_path / "study").mkdir()
    status, said = ask("new", "study", "--json")
    told = json.loads(said)
    assert status == 0 and told["next"] == ["fsdl launch study/nbs/00_train.ipynb --cell Train"], said
    assert (tmp_path / "study" / "nbs" / "00_train.ipynb").is_file()


def test_what_a_template_needs_is_named_with_the_command(tmp_path, monkeypatch):
    needy = replace(find_template("blank"), needs={"no_such_module": "no-such-module>=1", "json": "json"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(new_module, "find_template", lambda name: needy)
    status, said = ask("new", "study")
    assert status == 0 and "needs no-such-module>=1, which this environment does not have" in said, said
    assert "-m pip install 'no-such-module>=1' next: fsdl launch" in said, said


def test_new_without_a_name_lists_the_templates():
    status, said = ask("new")
    assert status == 0 and all(name in said for name in read_templates()), said


def data_files() -> dict[str, list[str]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]


def template_files() -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in tracked_files() if path.is_relative_to(TEMPLATES)}


def test_every_file_of_the_templates_is_packed():
    """Setuptools takes data files by patterns of one folder each: a new folder needs a line of its own."""
    packed = set()
    for target, patterns in data_files().items():
        for name in template_files():
            if any(
                fnmatch.fnmatchcase(name, pattern) and name.count("/") == pattern.count("/")
                for pattern in patterns
            ):
                assert target == f"share/fsdl_dev/{Path(name).parent.as_posix()}", name
                packed.add(name)
    assert packed == template_files(), (
        f"add to [tool.setuptools.data-files]: {sorted(template_files() - packed)}"
    )


@pytest.mark.slow
def test_a_wheel_brings_the_templates(working_copy, tmp_path):
    wheel = build_wheel(working_copy, tmp_path)
    inside = {name.removeprefix("share/fsdl_dev/") for name in installed_data(wheel)}
    assert template_files() <= inside, sorted(template_files() - inside)
    place = tmp_path / "installed"
    install_beside(wheel, place)
    site = next(place.rglob("site-packages"))
    code = "from fsdl_dev.cli.project.template import templates_folder; print(templates_folder())"
    environment = {**surroundings(), "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, text=True, capture_output=True
    )
    assert done.stdout.strip() == str(place / "share" / "fsdl_dev" / "templates"), done.stderr
