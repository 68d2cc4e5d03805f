"""A rehearsal finds what fails late, keeps the project's files as they are, and says what it did not go through."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rehearsal_good import CELLS, GOOD
from rehearsal_planted import LIGHTNING, PLAIN, PLANTED, fill

import fsdl_dev
from fsdl_dev.api import checked_launch
from fsdl_dev.cli.main import main
from fsdl_dev.core.check import LaunchRefused
from fsdl_dev.core.settings import find_project
from fsdl_dev.launcher.gates import all_gates
from fsdl_dev.launcher.prepare import prepare
from fsdl_dev.launcher.request import LaunchRequest

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder whose launches go to the test target."""
    (tmp_path / "pyproject.toml").write_text('[tool.fsdl_dev]\ntarget = "test"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rehearsed(what: str, **asked) -> list:
    """The checks of the rehearsal of a job in the current folder."""
    launch = checked_launch(what, rehearse=True, no_test=True, **asked)
    return [check for check in launch.checks if check.name == "rehearsal"]


def said(checks: list) -> str:
    return "\n".join(check.text() for check in checks)


@pytest.mark.parametrize(
    "name", ["loader without a place", "one cycle too short", "report at the end", "option that was renamed"]
)
def test_what_fails_late_is_found(project, name):
    planted = next(job for job in PLANTED if job.name == name)
    (project / "train.py").write_text(planted.source)
    failed = [check for check in rehearsed("train.py") if check.failed]
    assert failed and planted.says in said(failed), said(failed)
    assert "train.py, line" in failed[0].where or "configure_optimizers" in failed[0].where


@pytest.mark.parametrize(
    "name", ["data module, two validations", "a picture over epochs", "settings from a file, a package"]
)
def test_what_is_good_is_not_refused(project, name):
    good = next(job for job in GOOD if job.name == name)
    for file, text in good.files.items():
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(text)
    checks = rehearsed(good.what, args=good.args)
    assert not any(check.failed for check in checks) and "the end of the job" in said(checks), said(checks)


def test_a_refused_launch_leaves_no_run_and_a_good_one_goes_on(project):
    (project / "train.py").write_text(fill(PLAIN, AFTER="print(args.missing)"))
    with pytest.raises(LaunchRefused) as refused:
        fsdl_dev.launch("train.py", rehearse=True, say=None)
    assert "what follows the loop over epoch" in str(refused.value)
    assert not list((find_project(project).store / "runs").glob("*"))
    (project / "train.py").write_text(fill(PLAIN).replace("default=20", "default=3"))
    told = []
    run = fsdl_dev.launch("train.py", rehearse=True, say=told.append, wait=True)
    assert run.state == "succeeded" and "2 epochs" in "".join(told)
    assert any(check.name == "rehearsal" for check in run.job.launch.checks)
    assert len(list((run.store / "rehearsals").glob("*-*"))) == 1, "the one that failed is kept to be read"


def test_the_files_of_the_project_stay_as_they_are(project):
    (project / ".git").mkdir()
    (project / ".gitignore").write_text("best.pth\ndata\n.fsdl\n")
    (project / "best.pth").write_bytes(b"of last week")
    (project / "data").mkdir()
    (project / "data" / "x.txt").write_text("7")
    text = fill(
        PLAIN, BEFORE='assert open("data/x.txt").read() == "7"', AFTER='open("data/y.txt", "w").write("new")'
    )
    (project / "train.py").write_text(text)
    checks = rehearsed("train.py")
    assert not any(check.failed for check in checks), said(checks)
    assert (project / "best.pth").read_bytes() == b"of last week" and not (
        project / "data" / "y.txt"
    ).exists()


def test_a_job_for_gpus_says_what_is_not_rehearsed(project):
    text = fill(PLAIN, BEFORE='net.to("cuda")')
    (project / "train.py").write_text(text)
    checks = rehearsed("train.py", gpus=0)
    assert not any(check.failed for check in checks) and "needs a GPU" in said(checks), said(checks)


def test_a_notebook_and_its_cell(project):
    cells = [*CELLS[:-1], "print(trainer.callback_metrics['accuracy'])"]
    made = [
        {
            "cell_type": "code",
            "id": f"c{at}",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": text,
        }
        for at, text in enumerate(cells)
    ]
    book = {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (project / "study.ipynb").write_text(json.dumps(book))
    (failed,) = [check for check in rehearsed("study.ipynb") if check.failed]
    assert "KeyError" in failed.message and "cell 4" in failed.where and failed.where.cell.id == "c3"


def test_the_metric_of_a_search(project):
    (project / "train.py").write_text(fill(LIGHTNING))
    launch = prepare("train.py", LaunchRequest(rehearse=True), folder=project).launch("check", no_test=True)
    launch = replace(launch, best="max:val/acuracy")
    launch.walk(all_gates())
    assert "Did you mean 'val/acc'" in said([check for check in launch.checks if check.failed])


def test_the_command_and_a_dry_run(project):
    (project / "train.py").write_text("print('nothing is trained')\n")
    answer = CliRunner().invoke(main, ["check", "train.py", "--rehearse"])
    assert answer.exit_code == 0 and "the job ran as it is" in answer.output, answer.output
    dry = CliRunner().invoke(main, ["launch", "train.py", "--rehearse", "--dry-run"])
    assert dry.exit_code == 0 and "Nothing was submitted" in dry.output, dry.output


def test_a_script_of_another_interpreter_is_not_rehearsed(project):
    (project / "tool").write_text("#!/bin/sh\necho hello\n")
    launch = checked_launch("tool", rehearse=True)
    answer = next(answer for answer in launch.answers if answer.gate.name == "rehearsal")
    assert "another interpreter" in answer.not_asked
