"""The rules of a team: at every door, in the worker, with exceptions and a class of the team's own."""

import json
import os
import pickle
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import fsdl_dev
from fsdl_dev.cli.main import main
from fsdl_dev.core.check import LaunchRefused
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.job import Job, Resources
from fsdl_dev.core.rundir import create_run_dir, read_json, write_json
from fsdl_dev.core.settings import find_project
from fsdl_dev.engines.target import get_target
from fsdl_dev.launcher.completion import complete_exceptions
from fsdl_dev.launcher.rules import owner_use
from fsdl_dev.policy.settings import read_policy
from fsdl_dev.records.run import Run
from fsdl_dev.worker.job.feed_content import RunFile

POLICY = """\
[tool.fsdl_dev.policy]
owner = "ada"
reason = "a run that never ends holds its machine for ever"
required_tags = ["task"]
max_time = "1h"

[[tool.fsdl_dev.policy.rules]]
name = "names"
field = "tags.task"
comparison = "one of"
value = ["digits", "text"]
reason = "reports are made by task"
owner = "bob"
when = {"tags.task" = "!= "}

[tool.fsdl_dev.policy.exceptions.night]
rule = "max_time"
reason = "the night before the deadline"
until = 2999-12-31

[tool.fsdl_dev.policy.exceptions.past]
rule = "max_time"
reason = "last year's deadline"
until = 2020-12-31
"""
SCRIPT = """\
import sys
from pathlib import Path
import fsdl_dev
Path("ran.txt").write_text("user code")
loss = float(sys.argv[sys.argv.index("--loss") + 1]) if "--loss" in sys.argv else 0.5
fsdl_dev.log(step=1, loss=loss)
"""
GOOD = {"tags": {"task": "digits"}, "time": "30m"}


@pytest.fixture
def project(tmp_path, monkeypatch):
    root = tmp_path / "study"
    root.mkdir()
    (root / "pyproject.toml").write_text(POLICY)
    (root / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(root)
    monkeypatch.delenv("FSDL_STORE", raising=False)
    return root


def launch(**asked):
    return fsdl_dev.launch("train.py", on="test", say=None, **asked)


def refused(**asked) -> str:
    with pytest.raises((LaunchRefused, FsdlError)) as error:
        launch(**asked)
    return str(error.value)


def runs(project: Path) -> list[Path]:
    return list((project / ".fsdl" / "runs").glob("*"))


def test_a_launch_that_breaks_rules_is_told_each_with_why_and_what_to_do(project):
    said = refused(tags={"tusk": "digits"})
    assert "The tag 'task' must be given, and it is missing ('tusk' was given.)" in said, said
    assert "The time limit must be at most 1 h, and it is without a limit." in said
    assert "A run that never ends holds its machine for ever" in said
    assert "fix:   --time 1h; or ask ada for an exception: --exception NAME" in said
    assert "fix:   add --tag task=..." in said
    assert not runs(project)


def test_every_door_judges_a_launch(project):
    checks = fsdl_dev.check("train.py", on="test", say=None, tags={"task": "digits"}, time="2h")
    assert [check.rule for check in checks if check.failed] == ["max_time"]
    answer = CliRunner().invoke(
        main, ["check", "train.py", "--on", "test", "--time", "2h", "--tag", "task=x", "--json"]
    )
    assert answer.exit_code == 3
    assert {one["rule"] for one in json.loads(answer.output) if one["verdict"] == "fail"} == {
        "max_time",
        "names",
    }
    assert "at most 1 h" in refused(dry_run=True, tags={"task": "digits"}, time="2h")
    run = launch(**GOOD).wait(300, progress=False)
    assert run.state == "succeeded", run.status_line()
    (project / "pyproject.toml").write_text(POLICY.replace('"1h"', '"10m"'))  # stricter since then
    with pytest.raises((LaunchRefused, FsdlError), match="at most 10 min, and it is 30 min"):
        fsdl_dev.reproduce(run, here=True, say=None)
    (project / "pyproject.toml").write_text(POLICY.replace('"1h"', '"40m"'))
    again = fsdl_dev.reproduce(run, here=True, say=None).again
    assert again.state == "succeeded", again.status_line()
    assert read_json(again.path / "snapshot.json")["policy"]["max_time"] == "40m", "the rules of today"


def test_what_goes_round_the_launcher_is_refused_by_the_worker_before_user_code(project):
    earlier = launch(**GOOD).wait(300, progress=False)
    assert (earlier.path / "outputs" / "ran.txt").exists() or (project / "ran.txt").exists()
    (project / "ran.txt").unlink(missing_ok=True)
    run = tampered(project, earlier)
    run.wait(300, progress=False)
    assert run.state == "failed"
    assert "The time limit must be at most 1 h, and it is 9 h." in run.failure.message
    assert "The tag 'task' must be given" in run.failure.message and "max_time" in run.failure.message
    assert "--time 1h" in run.failure.command or "task=" in run.failure.command
    assert not (project / "ran.txt").exists() and not list(run.path.rglob("ran.txt")), "no user code has run"


def tampered(project: Path, earlier: Run) -> Run:
    """A run whose job.json was written by hand, with the snapshot of an earlier one."""
    found, job = find_project(project), earlier.dir.load_job()
    made = create_run_dir(found.store, job, earlier.job.launch)
    write_json(made.snapshot_file, read_json(earlier.dir.snapshot_file))
    text = made.job_file.read_text().replace('"30m"', '"9h"').replace('"task"', '"nothing"')
    made.job_file.chmod(0o600)
    made.job_file.write_text(text)
    get_target("test", found).submit(made, made.load_job(), found)
    return Run(made)


def test_the_trials_of_a_sweep_are_judged(project):
    pytest.importorskip("optuna")
    search = {"each": {"loss": "0.1..0.5"}, "trials": 2, "best": "min:loss"}
    assert "at most 1 h" in refused(**search, tags={"task": "digits"}, time="2h")
    assert not runs(project)
    sweep = launch(**search, **{**GOOD, "time": "2h"}, exception="night")
    assert sweep.wait(300, progress=False).state == "succeeded", sweep.status_line()
    trials = [run for path in runs(project) if "sweep" in (run := Run(fsdl_dev.load_run(path.name).dir)).tags]
    assert len(trials) == 2 and all(trial.state == "succeeded" for trial in trials)
    assert all(trial.job.launch.exceptions == ("night",) for trial in trials)


def test_an_exception_is_recorded_and_one_that_is_past_or_unknown_is_refused(project):
    said = refused(tags={"task": "digits"}, time="2h", exception="past")
    assert (
        "was given until 2020-12-31, and that day is past" in said and "ask ada for a later `until`" in said
    )
    said = refused(tags={"task": "digits"}, time="2h", exception=("nihgt",))
    assert (
        "no exception 'nihgt'" in said and "Did you mean 'night'" in said and "fsdl policy lists them" in said
    )
    run = launch(tags={"task": "digits"}, time="2h", exception="night").wait(300, progress=False)
    assert run.state == "succeeded", run.status_line()
    (waived,) = [check for check in run.job.launch.checks if check.waived]
    assert waived.rule == "max_time" and waived.verdict == "warn"
    assert waived.waived == "night (ada): the night before the deadline, until 2999-12-31"
    assert run.job.launch.exceptions == ("night",)
    assert [item.value for item in complete_exceptions(None, None, "")] == ["night"]


def test_a_class_of_the_team_judges_and_adds_tags(project, tmp_path, monkeypatch):
    rules = tmp_path / "rules"
    about = rules / "team_policy-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: team-policy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fsdl_dev.policy]\nteam = team_policy:Team\n")
    (rules / "team_policy.py").write_text(
        "from dataclasses import replace\n"
        "from fsdl_dev.core.check import refusal\n\n\n"
        "class Team:\n"
        "    def validate(self, launch):\n"
        "        if launch.tags.get('task') == 'text':\n"
        "            return refusal('team', 'Texts are not trained here.', 'task', '--tag task=digits')\n"
        "        return replace(launch, tags={**launch.tags, 'centre': '7'})\n"
    )
    monkeypatch.delitem(sys.modules, "team_policy", raising=False)
    monkeypatch.syspath_prepend(str(rules))
    path = os.pathsep.join(filter(None, [str(rules), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    assert "Texts are not trained here." in refused(tags={"task": "text"}, time="5m")
    run = launch(**GOOD).wait(300, progress=False)
    assert run.state == "succeeded" and run.tags["centre"] == "7", run.status_line()
    answer = CliRunner().invoke(main, ["policy"])
    assert "Also asked: team of team-policy" in answer.output
    (rules / "team_policy.py").write_text("import a_module_that_is_not_here\n")
    monkeypatch.delitem(sys.modules, "team_policy", raising=False)
    assert "The policy 'team' of team-policy cannot be loaded" in refused(**GOOD)


def test_gpus_of_the_owner_are_counted(project):
    store = find_project(project).store
    for owner, gpus in (("ada", 4), ("ada", 2), ("bob", 8)):
        job = Job(
            "script",
            "train",
            script="train.py",
            tags={"owner": owner},
            resources=Resources(gpus=gpus, time="2h"),
        )
        made = create_run_dir(store, job)
        made.set_state(made.writer("launcher"), "queued", "example")
    assert owner_use(store, "ada") == (6, 12.0) and owner_use(store, "bob") == (8, 16.0)


def test_the_environment_is_judged_by_its_digest_here_and_on_the_machine(project):
    digest = json.loads(CliRunner().invoke(main, ["policy", "--json"]).output)["environment"]
    allowed = f'environments = ["{digest[:12]}"]\nmax_time = "1h"'
    (project / "pyproject.toml").write_text(POLICY.replace('max_time = "1h"', allowed))
    run = launch(**GOOD).wait(300, progress=False)
    assert run.state == "succeeded", run.status_line()
    (project / "pyproject.toml").write_text(
        POLICY.replace('max_time = "1h"', allowed.replace(digest[:12], "0" * 12))
    )
    said = refused(**GOOD)
    assert f"The digest of the environment must be 000000000000, and it is {digest}" in said, said


def test_a_checkpoint_that_could_run_code_is_not_uploaded(project):
    made = create_run_dir(find_project(project).store, Job("script", "train", script="train.py"))
    torch.save({"weight": torch.ones(2)}, made.checkpoints / "good.pt")
    (made.checkpoints / "bad.pt").write_bytes(pickle.dumps({"run": os.system}))
    good, bad = (
        RunFile("checkpoint", "last", f"checkpoints/{name}.pt", "", None, {}) for name in ("good", "bad")
    )
    assert good.upload(made) == made.checkpoints / "good.pt" and "refused" not in good.record(made)
    assert bad.upload(made) is None and "posix.system" in bad.record(made)["refused"]


def test_the_command_prints_sentences_with_reason_and_owner(project):
    answer = CliRunner().invoke(main, ["policy"])
    assert (
        "The time limit must be at most 1 h.\n      max_time, by ada: a run that never ends" in answer.output
    )
    assert "past: waives max_time, until 2020-12-31, which is past." in answer.output
    told = json.loads(CliRunner().invoke(main, ["policy", "--json"]).output)
    assert {rule["name"] for rule in told["rules"]} == {"required_tags.task", "max_time", "names"}
    assert len(told["environment"]) == 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_gpu = 4", "Did you mean 'max_gpus'"),
        ("max_gpus = true", "is a number"),
        ('max_time = "48"', "has no unit"),
        ("required_tags = [3]", "list of names"),
        ("spot_checkpoints = \"0s\"", "above 0"),
        ('long_runs = {over = "8h"}', "says `over` and `targets`"),
        ('rules = [{field = "gpus", comparison = "<=", value = 4}]', "says no reason"),
        ('rules = [{field = "gpu", comparison = "<=", value = 4, reason = "r", owner = "o"}]', "Did you mean 'gpus'"),
        ('rules = [{field = "gpus", comparison = "at mostt", value = 4, reason = "r", owner = "o"}]', "'at most'"),
        ('rules = [{field = "target", comparison = "<=", value = "x", reason = "r", owner = "o"}]', "no order"),
        ('rules = [{field = "target", comparison = "matches", value = "(", reason = "r", owner = "o"}]', "expression"),
        ('rules = [{fields = "target"}]', "Did you mean 'field'"),
        ('max_gpus = 2\nrules = [{field = "gpus", comparison = ">=", value = 4, reason = "r", owner = "o"}]',
         "contradict"),
        ('targets = ["a"]\nrules = [{field = "target", comparison = "is", value = "b", reason = "r", owner = "o"}]',
         "contradict"),
        ('rules = [{field = "gpus", comparison = "<=", value = 4, reason = "r", owner = "o"},'
         ' {field = "gpus", comparison = "<=", value = 2, reason = "r", owner = "o"}]', "Two rules are called 'gpus'"),
        ('max_gpus = 2\nexceptions = {x = {rule = "max_gpu", reason = "r", until = 2026-12-31}}', "Did you mean"),
        ('max_gpus = 2\nexceptions = {x = {rule = "max_gpus", reason = "r"}}', "says until when"),
        ('max_gpus = 2\nexceptions = {x = {reason = "r", until = 2026-12-31}}', "names no rule"),
    ],
)  # fmt: skip
def test_a_wrong_policy_is_refused_with_the_place_and_a_spelling_that_works(text, said):
    table = tomllib.loads(f'owner = "o"\nreason = "r"\n{text}')
    with pytest.raises(FsdlError) as error:
        read_policy({"policy": table})
    assert said in str(error.value), error.value
    assert "policy" in error.value.where and "pyproject.toml" in error.value.where and error.value.fix


def test_a_policy_that_cannot_be_read_refuses_a_launch_once(project):
    (project / "pyproject.toml").write_text("[tool.fsdl_dev.policy]\nmax_gpu = 4\n")
    said = refused(**GOOD)
    assert said.count("Did you mean 'max_gpus'") == 1, said


def test_a_rule_asks_for_a_pipeline_and_ci_fills_it_in(project, monkeypatch):
    """The worker judges the rule again, in a process that is no CI job."""
    rules = POLICY.replace('required_tags = ["task"]', 'required_tags = ["task", "pipeline"]')
    (project / "pyproject.toml").write_text(rules)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)  # this test may run in CI
    for name in ("CI_PIPELINE_ID", "BUILD_TAG", "TF_BUILD", "CIRCLECI", "BUILDKITE"):
        monkeypatch.delenv(name, raising=False)
    assert "The tag 'pipeline' must be given" in refused(**GOOD)
    for name, value in {
        "GITHUB_ACTIONS": "true",
        "GITHUB_RUN_ID": "1742",
        "GITHUB_REPOSITORY": "lab/digits",
        "GITHUB_WORKFLOW": "nightly",
        "GITHUB_SERVER_URL": "https://github.com",
    }.items():
        monkeypatch.setenv(name, value)
    run = launch(**GOOD).wait(300, progress=False)
    assert run.state == "succeeded", run.status_line()
    assert [row.id for row in fsdl_dev.runs("pipeline ~ github/lab")] == [run.id]
    assert run.facts.pipeline.url == "https://github.com/lab/digits/actions/runs/1742"
    assert run.facts.project == "study"
