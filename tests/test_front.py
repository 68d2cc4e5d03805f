"""What a person reads at the doors, in this process: dry runs without a cluster, several runs at once, advice."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdl_dev.cli.main import main
from fsdl_dev.core.job import Job
from fsdl_dev.core.rundir import RunDir, create_run_dir
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
    return done.exit_code, done.output


def made(folder: Path, *states: str) -> RunDir:
    "A run that a worker elsewhere took through these states."
    run = create_run_dir(
        find_project(folder).store, {"kind": "script", "name": "train.py", "target": "local"}
    )
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
