"""Quotas that Slurm itself enforces, on a real cluster: what is set, set again, used, refused and taken back."""

import json
import shlex
import subprocess

import pytest
from click.testing import CliRunner
from slurm_lab import SlurmLab, sbatch

import fsdl_dev
from fsdl_dev.cli.main import main
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.job import Resources
from fsdl_dev.core.settings import find_project
from fsdl_dev.core.units import Money
from fsdl_dev.launcher.limits import price_of

pytestmark = pytest.mark.slow

QUOTAS = """
[tool.fsdl_dev.prices.cluster]
gpus = { a100 = 2.10 }
billing_unit = "0.01 USD"

[tool.fsdl_dev.quotas.cluster]
budgets_per = "month"
priorities = { urgent = 2000 }

[tool.fsdl_dev.quotas.cluster.accounts.research]
gpus = 24

[tool.fsdl_dev.quotas.cluster.accounts.vision]
parent = "research"
share = 40
budget = "4 USD"
gpus = 16
users = ["root", "ada"]

[tool.fsdl_dev.quotas.cluster.partitions.inter]
time = "2h"
gpus_per_user = 2
priority = 20

[tool.fsdl_dev.quotas.cluster.partitions.train]
time = "2d"

[tool.fsdl_dev.quotas.cluster.partitions.fine-tuning]
time = "12h"
"""


def state_of(lab) -> dict:
    "All that Slurm has, but for the users that only a look at them shows."
    return lab.target().enforcer.read().state


@pytest.fixture
def lab(slurm, tmp_path, monkeypatch):
    lab = SlurmLab(tmp_path, slurm, account="vision", partition="train")
    file = lab.folder / "pyproject.toml"
    file.write_text(file.read_text() + QUOTAS)
    lab.project = find_project(lab.folder)
    monkeypatch.chdir(lab.folder)
    before = state_of(lab)
    yield lab
    slurm.run("scancel", "-Q", "--user=root", check=False)
    slurm.wait(lambda: not slurm.run("squeue", "-h").strip(), "an empty queue")
    if state_of(lab) != before:
        apply("--undo", "--yes")
    assert state_of(lab) == before


def apply(*options: str, expect: int = 0, said: str = "") -> str:
    "What `fsdl policy apply` prints."
    done = CliRunner().invoke(main, ["policy", "apply", "--on", "cluster", *options], input=said)
    assert done.exit_code == expect, done.output
    return done.output


def test_applied_twice_and_taken_back(lab, slurm):
    """The second time changes nothing. Slurm holds to it where fsdl is passed by; what is taken back is as it was."""
    before = state_of(lab)
    shown = apply("--dry-run")
    assert "GrpTRESMins billing: 24000\n" in shown  # 400 cents, each an hour of a unit, of 60 minutes
    assert "PriorityUsageResetPeriod=MONTHLY" in shown and "PartitionName=fine-tuning Nodes=NODES" in shown
    assert state_of(lab) == before
    assert "Aborted" in apply(expect=1, said="n\n") and state_of(lab) == before

    assert "changed" in apply("--yes")
    found = state_of(lab)
    assert found["account vision"]["GrpTRESMins billing"] == "24000"
    assert found["account vision"]["Fairshare"] == "40" and found["account vision"]["parent"] == "research"
    assert found["partition inter"]["TRESBillingWeights"] == "GRES/gpu=210"
    assert found["partition inter"]["MaxTime"] == "02:00:00" and found["partition inter"]["QoS"] == "inter"

    assert "cluster is as its quotas say: nothing to change." in apply("--yes")
    answer = json.loads(apply("--yes", "--json"))
    assert answer["changes"] == [] and not answer["applied"] and state_of(lab) == found
    assert len(list((lab.project.store / "quotas" / "cluster").glob("*.json"))) == 1

    for words, reason in (
        (["-p", "inter", "--gres=gpu:3", "-t", "10"], "QOSMaxGRESPerUser"),
        (["-p", "train", "--gres=gpu:8", "-t", "10:00:00"], "AssocGrpBillingMinutes"),
        (["-p", "inter", "--gres=gpu:1", "-t", "3:00:00"], "time limit"),
    ):
        done = subprocess.run(
            ["sbatch", "-A", "vision", *words, "--wrap", "true"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode and reason in done.stderr, done.stderr

    assert "account vision is deleted. Slurm forgets with it what it has used" in apply("--undo", "--yes")
    assert state_of(lab) == before
    assert "Nothing that this project changed" in apply("--undo", expect=2)


def test_what_somebody_changed_meanwhile_is_not_taken_back(lab, slurm):
    """It is named, and so is what would be deleted with an account."""
    apply("--yes")
    slurm.run("scontrol", "update", "PartitionName=inter", "PriorityTier=21")
    slurm.run("sacctmgr", "-i", "-Q", "add", "user", "grace", "account=vision", "cluster=demo")
    slurm.run("sacctmgr", "-i", "-Q", "modify", "account", "research", "set", "GrpTRES=gres/gpu=4")
    changed = state_of(lab)
    said = apply("--undo", "--yes", expect=2)
    for words in (
        "partition inter PriorityTier: 20 was made of it, and it is 21",
        "user grace in account vision is there, and would be deleted with account vision",
        "account research GrpTRES gres/gpu: it was 24, and is 4",
    ):
        assert words in said, said
    assert state_of(lab) == changed
    # to apply again sets back what the quotas say, as a change of its own, and leaves what they do not name
    again = apply("--yes")
    assert "PriorityTier: 21 -> 20" in again and "GrpTRES gres/gpu: 4 -> 24" in again
    assert "Also in the account vision, and left there: grace." in again
    apply("--undo", "--yes")
    assert state_of(lab) == changed
    slurm.run("sacctmgr", "-i", "-Q", "delete", "user", "name=grace", "account=vision", "cluster=demo")
    slurm.run("sacctmgr", "-i", "-Q", "modify", "account", "research", "set", "GrpTRES=gres/gpu=24")
    slurm.run("scontrol", "update", "PartitionName=inter", "PriorityTier=20")


def test_a_job_uses_what_was_computed_and_too_large_a_one_is_refused(lab, slurm):
    """Billing minutes are cents an hour times minutes. A job that needs more than what is left would wait for ever:
    it is refused before sbatch, by Slurm's own limit.
    """
    apply("--yes")
    target = lab.target()
    job = lab.make("hello.py", resources=Resources(gpus=2, time="30m"))[1]
    assert target.hourly_price(job) == Money(4.20, "USD")
    assert price_of(target, job, lab.project).of_hour(2) == Money(4.20, "USD")

    number = sbatch("-A", "vision", "-p", "train", "--gres=gpu:2", "-t", "2", script="sleep 15")
    slurm.wait(lambda: not slurm.state(number), "the job to end")
    row = lambda: slurm.run(
        "sacct", "-n", "-X", "-P", "-j", number, "-o", "ElapsedRaw,AllocTRES,State"
    ).strip()  # noqa: E731
    slurm.wait(lambda: "COMPLETED" in row(), "accounting")
    elapsed, tres, _ = row().split("|")
    assert "billing=420" in tres
    share = slurm.run("sshare", "-n", "-P", "-A", "vision", "-o", "User,GrpTRESRaw").splitlines()[0]
    used = int(dict(part.split("=") for part in share.split("|")[1].split(","))["billing"])
    assert abs(used - 420 * int(elapsed) / 60) <= 2, (used, elapsed)

    left = 24000 - used
    fits, too_long = left // 420, left // 420 + 1
    assert 420 * too_long < 24000, "all of it would do"

    def launch(**asked):
        return fsdl_dev.launch("hello.py", folder=lab.folder, on="cluster", gpus=2, say=None, **asked)

    jobs = slurm.run("squeue", "-h", "-t", "all", "-o", "%i").split()
    with pytest.raises(FsdlError) as refused:
        launch(time=f"{too_long}m")
    said = str(refused.value)
    assert "AssocGrpBillingMinutes" in said and "GrpTRESMins=billing=24000" in said, said
    assert "'vision' may use 4.00 USD (24,000 billing minutes)" in said and f"--time {fits}m" in said
    assert slurm.run("squeue", "-h", "-t", "all", "-o", "%i").split() == jobs, "sbatch was asked"

    with pytest.raises(FsdlError, match="AssocGrpBillingMinutes"):  # more than all: sbatch's own answer
        launch(time="10h")
    waits = sbatch("-A", "vision", "-p", "train", "--gres=gpu:2", "-t", str(too_long))
    reason = lambda: slurm.run("squeue", "-h", "-j", waits, "-o", "%r").strip()  # noqa: E731
    slurm.wait(lambda: reason() == "AssocGrpBillingMinutes", "the reason that was named")
    slurm.run("scancel", waits)

    assert launch(time=f"{fits}m").wait(progress=False).state == "succeeded"
    run = launch(max_cost=1)  # its time limit comes from the money, and is what is compared
    assert run.wait(progress=False).state == "succeeded"


def test_only_an_administrator_may(lab, monkeypatch):
    """Who is none is told so, with what to hand over to one."""
    slurm = lab.target().engine.slurm
    ask = slurm.run

    def as_nobody(line: str, **more):
        return ask(
            f"exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -c {shlex.quote(line)}", **more
        )

    with monkeypatch.context() as patch:
        patch.setattr(slurm, "run", as_nobody)
        said = apply("--yes", expect=2)
    assert "Only an administrator of Slurm may do this." in said and "--print" in said, said
