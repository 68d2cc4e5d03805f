"""What a person reads at the doors, in this process: dry runs without a cluster, several runs at once, advice."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdl_dev.cli.main import main
from fsdl_dev.core.job import Job
from fsdl_dev.core.rundir import RunDir, create_run_dir, run_words
from fsdl_dev.core.settings import find_project
from fsdl_dev.engines.target import get_target
from fsdl_dev.engines.transport.shell import Unreachable
from fsdl_dev.worker.processes import who_asks


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    "A project without notebooks, which is the current folder."
    (tmp_path / "pyproject.toml").write_text('[tool.fsdl_dev.targets.box]\nkind = "ssh"\nhost = "box"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(*words: str) -> tuple[int, str]:
    "The exit status of a command, and all that it says."
    done = CliRunner().invoke(main, [*words])
    return done.exit_code, " ".join(done.output.split())  # a card is folded


def made(folder: Path, *states: str) -> RunDir:
    "A run that a worker elsewhere took through these states."
    run = create_run_dir(find_project(folder).store, Job("script", "train.py"))
    for state in states:
        run.set_state(run.writer("worker"), state, "example")
    return run


def test_a_dry_run_of_a_target_that_does_not_answer(folder, monkeypatch):
    "It is written from the configuration, and says so."
    target = get_target("box", find_project(folder))

    def far(run_id: str):
        raise Unreachable("box does not answer. ssh said: Connection timed out.", "timed out")

    monkeypatch.setattr(target.engine, "far", far)
    text = target.plan(Job("script", "train.py", script="train.py"), find_project(folder))
    first, second, *rest = text.splitlines()
    assert first == "#!/bin/sh" and "box does not answer" in second and "fsdl_dev/runs/RUN" in "".join(rest)


def test_several_runs_are_cancelled_by_name_and_by_condition(folder):
    (folder / "long.py").write_text("import time\nprint('started', flush=True)\ntime.sleep(1000)\n")
    names = [
        ask("launch", "long.py", "--on", "test", "--detach", "--no-test")[1].split()[-1] for _ in range(4)
    ]
    status, said = ask("cancel", names[0], names[1])
    assert status == 0 and "2 runs: 2 cancelled" in said, said
    status, said = ask("cancel", "state = queued or state = running or state = starting")
    assert status == 2 and "These 2 runs would be stopped" in said and "--yes" in said, said
    status, said = ask("cancel", "name = long.py", "--yes")
    assert status == 0 and "2 runs: 2 cancelled" in said, said
    status, said = ask("cancel", "name = long.py", "--yes")
    assert status == 2 and "No run that fits" in said, said
    last = RunDir(find_project(folder).store / "runs" / names[3]).last_state()
    assert last["reason"].startswith(f"cancelled by {who_asks()}"), last


def write(path: Path, cells: list, **content) -> None:
    "A notebook's file."
    entries = [{"cell_type": "code", "source": text, "metadata": {}, "outputs": []} for text in cells]
    path.write_text(json.dumps({"cells": entries, "metadata": {}, "nbformat": 4, **content}))


def test_notebooks_that_are_not_python_or_old_are_told_as_such(folder):
    "They are refused before anything runs."
    write(folder / "r.ipynb", ["x <- 3"], metadata={"kernelspec": {"name": "ir", "language": "R"}})
    write(folder / "julia.ipynb", ["x = 3"], metadata={"kernelspec": {"name": "julia-1.11"}})
    (folder / "old.ipynb").write_text(json.dumps({"worksheets": [{"cells": []}], "nbformat": 3}))
    for name, words in {"r": "written in R", "julia": "written in Julia", "old": "nbformat 3"}.items():
        status, said = ask("launch", f"{name}.ipynb", "--on", "test")
        assert status == 2 and words in said and "nbconvert" in said, said


def test_advice_that_leads_somewhere(folder):
    "A debugger in a job, a file for --resume, a script's own header, a project that would hide a module."
    (folder / "train.py").write_text(
        '# /// script\n# dependencies = ["numpy>=1", "no-such-thing-9"]\n# ///\nprint("x")\nbreakpoint()\n'
    )
    here = (
        "--on",
        "test",
        "--set",
        f"python={sys.executable}",
    )  # with its packages, whatever the header says
    status, said = ask("check", "train.py", *here, "--no-test")
    assert status == 0 and "names no-such-thing-9, which" in said and "pip install no-such-thing-9" in said, (
        said
    )
    (folder / "needs.py").write_text(
        "# /// script\n# dependencies = ['no-such-thing-9']\n# ///\nimport no_such_thing\n"
    )
    (folder / "newer.py").write_text("# /// script\n# requires-python = '>=4'\n# ///\n")
    for name, words in {"needs.py": "It imports no_such_thing", "newer.py": "asks for Python >=4"}.items():
        status, said = ask("launch", name, *here)
        assert status == 3 and words in said, said
    status, said = ask("launch", "train.py", *here, "--no-test")
    assert status == 1 and "a job has no terminal" in said and "python -m pdb" in said, said
    status, said = ask("launch", "train.py", "--on", "test", "--resume", "train.py")
    assert status == 2 and "takes a run, and this is a file" in said, said
    for name, words in {"torch": "an installed package", "random": "a module of Python"}.items():
        status, said = ask("init", name)
        assert status == 2 and words in said and f"--name {name}_study" in said, said
        assert not (folder / name).exists()


def test_a_check_without_words_looks_at_what_there_is(folder, monkeypatch):
    "Every launch cell of an nbdev project; elsewhere it says what can be named."
    (folder / "train.py").write_text("print(1)\n")
    status, said = ask("check", "--on", "test")
    assert status == 2 and "fsdl check train.py (or package.module:function)" in said, said
    (folder / "pyproject.toml").unlink()
    (folder / "settings.ini").write_text("[DEFAULT]\nlib_name = own\nnbs_path = nbs\n")
    (folder / "nbs").mkdir()
    write(folder / "nbs" / "00_a.ipynb", ["#| default_exp a", "%%fsdl_launch\nprint(1)"], nbformat_minor=4)
    write(folder / "nbs" / "01_b.ipynb", ["%%fsdl_launch\nprint(nothing)"], nbformat_minor=4)
    status, said = ask("check", "--on", "test", "--no-test")
    assert "fsdl check nbs/00_a.ipynb --cell 2" in said and "fsdl check nbs/01_b.ipynb --cell 1" in said, said
    assert status == 3 and "nothing" in said, said


def test_a_folder_that_is_no_project_has_no_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FSDL_STORE", raising=False)
    status, said = ask("runs")
    assert status == 4 and "There is no project here" in said and "fsdl init" in said, said


def test_fetched_files_go_to_a_folder_of_the_run(folder):
    run = made(folder, "queued", "starting", "running", "succeeded")
    (run.path / "executed.ipynb").write_text("{}")
    status, said = ask("fetch", run.id)
    assert status == 0 and [path.name for path in (folder / run_words(run.id)).iterdir()] == [
        "executed.ipynb"
    ], said


def test_a_detach_in_a_notebook_is_a_text_with_the_magic(folder, capsys):
    "No error is shown for it, and the command is one that a cell takes."
    from IPython.core.interactiveshell import InteractiveShell

    from fsdl_dev.notebook.extension import load_ipython_extension, unload_ipython_extension

    InteractiveShell.clear_instance()  # a notebook that this process ran before may have left one that captures
    shell = InteractiveShell.instance()
    try:
        load_ipython_extension(shell)
        capsys.readouterr()
        result = shell.run_cell("from fsdl_dev.records.run import Detached\nraise Detached('brave-otter')")
        said = capsys.readouterr()
        assert "%fsdl_attach brave-otter" in said.out and "%fsdl_cancel brave-otter" in said.out, said
        assert not said.err and "most recent call" not in said.out and not result.success
        unload_ipython_extension(shell)
    finally:
        InteractiveShell.clear_instance()


def test_groups_of_jobs_have_names(folder):
    "The key of a job is no word for a person."
    store = find_project(folder).store
    for name, file in (("Train", "a"), ("Train", "b"), ("Test", "a")):
        create_run_dir(store, Job("cell", name, notebook=f"{file}.ipynb", cell_id=f"{name}{file}4ef986"))
    status, said = ask("runs", "--group", "job")
    assert status == 0 and "Train (b.ipynb)" in said and "Test 1" in said and "4ef986" not in said, said
