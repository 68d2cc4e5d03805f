"""A gate that a package adds is asked at every door, and one that cannot be loaded lets nothing through."""

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import fsdl_dev
from fsdl_dev.cli.main import main
from fsdl_dev.core.check import LaunchRefused, refusal
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.job import Job
from fsdl_dev.core.settings import find_project
from fsdl_dev.launcher.gates import GATES, all_gates
from fsdl_dev.launcher.launch import PHASES, Launch

RULES = """\
import os
import sys
from pathlib import Path
from fsdl_dev.core.check import Check
from fsdl_dev.launcher.launch import Gate


def ask(launch):
    with open(os.environ["ASKED_OF"], "a") as file:
        print(launch.door, file=file)
    if launch.job.tags.get("budget") == "none":
        return [Check("budget", "fail", "There is no money left.", "the budget", "ask Ada for more")]
    return [Check("budget", "pass", "10 USD are left")]


BUDGET = Gate("budget", "project", "The team can pay for it.", ask)
"""
SCRIPT = """\
import fsdl_dev
fsdl_dev.log(step=1, loss=0.5)
"""


def install(folder: Path, entry: str = "team_rules:BUDGET") -> None:
    """A package with a gate, as pip leaves one."""
    about = folder / "team_rules-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "team_rules.py").write_text(RULES)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: team-rules\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[fsdl_dev.gates]\nbudget = {entry}\n")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a script, and a list of the doors at which the team's gate was asked."""
    root, rules = tmp_path / "study", tmp_path / "rules"
    root.mkdir()
    (root / "pyproject.toml").write_text("[tool.fsdl_dev]\n")
    (root / "train.py").write_text(SCRIPT)
    install(rules)
    monkeypatch.chdir(root)
    monkeypatch.delitem(sys.modules, "team_rules", raising=False)
    monkeypatch.syspath_prepend(str(rules))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(rules), os.environ.get("PYTHONPATH")]))
    )
    monkeypatch.setenv("ASKED_OF", str(tmp_path / "asked.txt"))
    return root


def asked_since(project: Path, before: list[str]) -> list[str]:
    """The doors at which the team's gate was asked, since a list of them was made."""
    file = project.parent / "asked.txt"
    return file.read_text().splitlines()[len(before) :] if file.exists() else []


def test_the_list_is_in_the_order_of_its_phases_and_each_gate_says_what_it_asks():
    phases = [gate.phase for gate in all_gates()]
    assert phases == sorted(phases, key=list(PHASES).index)
    assert all(gate.sentence.endswith(".") for gate in GATES)


def test_every_door_asks_the_gate_of_a_package(project):
    seen: list[str] = []

    def door(name: str, call, *expected: str):
        found = call()
        new = asked_since(project, seen)
        assert new == list(expected or (name,)), (name, new)
        seen.extend(new)
        return found

    run = door("launch", lambda: fsdl_dev.launch("train.py", on="test", say=None)).wait(300, progress=False)
    assert run.state == "succeeded"
    assert any(check.name == "budget" for check in run.job.launch.checks)
    door("check", lambda: fsdl_dev.check("train.py", on="test", say=None))
    answer = door(
        "check", lambda: CliRunner().invoke(main, ["check", "train.py", "--on", "test", "--explain"])
    )
    assert answer.exit_code == 0 and "✓ budget: The team can pay for it.\n    budget: 10 USD" in answer.output
    assert (
        answer.output.index("✓ tags:")
        < answer.output.index("✓ budget:")
        < answer.output.index("✓ test mode:")
    )
    door("launch", lambda: fsdl_dev.launch("train.py", on="test", dry_run=True, say=None))
    again = door("reproduce", lambda: fsdl_dev.reproduce(run, here=True, say=None)).again
    assert again.state == "succeeded" and again.job.launch.door == "reproduce"
    assert "history" in again.job.launch.left_out, "which gates were left out is recorded, and why"
    tested = door("targets test", lambda: CliRunner().invoke(main, ["targets", "test", "test"]))
    assert "✘" not in tested.output, tested.output


def test_a_sweep_and_its_trials_ask_the_gate_of_a_package(project):
    pytest.importorskip("optuna")
    values = {"loss": "0.1..0.5"}
    (project / "train.py").write_text(
        "import sys, fsdl_dev\nfsdl_dev.log(step=1, loss=float(sys.argv[sys.argv.index('--loss') + 1]))\n"
    )
    sweep = fsdl_dev.launch("train.py", on="test", each=values, trials=2, best="min:loss", say=None)
    assert sweep.wait(300, progress=False).state == "succeeded", sweep.status_line()
    assert sorted(asked_since(project, [])) == ["sweep", "sweep", "trial", "trial"]


def test_the_gate_of_a_package_refuses(project):
    with pytest.raises(LaunchRefused, match="There is no money left"):
        fsdl_dev.launch("train.py", on="test", tags={"budget": "none"}, say=None)
    assert not list((project / ".fsdl" / "runs").glob("*"))


def test_an_unknown_target_hides_nothing_that_was_found_before(project):
    found = {
        "kernel": [refusal("kernel", "This cell was edited after it ran.", "cell 3", "run cell 3 again")]
    }
    job = Job("script", "train.py", script="train.py")
    launch = Launch([job], find_project(project), on="no-such", found=found).walk(all_gates())
    with pytest.raises(LaunchRefused, match="edited after it ran") as refused:
        launch.refuse_if_failed()
    assert "no target 'no-such'" in str(refused.value)
    assert [answer.gate.name for answer in launch.answers if answer.checks] == ["target", "kernel"]


def test_a_gate_that_cannot_be_loaded_refuses_and_names_its_package(project, tmp_path):
    (tmp_path / "rules" / "team_rules.py").write_text("import a_module_that_is_not_here\n")
    with pytest.raises(FsdlError, match="gate 'budget' of team-rules cannot be loaded") as refused:
        fsdl_dev.launch("train.py", on="test", say=None)
    assert "pip install --upgrade team-rules" in refused.value.fix
