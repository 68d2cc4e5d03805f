"""The queue in the open on a real Slurm cluster: place, cause, two estimates, and what really starts sooner."""

import json

import pytest
from click.testing import CliRunner
from following import events
from slurm_lab import SlurmLab, sbatch

from fsdl_dev.cards.card import card_text, make_card
from fsdl_dev.cli.main import main
from fsdl_dev.cli.team.queue import ask_queue
from fsdl_dev.core.job import Resources
from fsdl_dev.core.rundir import run_words
from fsdl_dev.records.run import Run

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(slurm, tmp_path, monkeypatch):
    lab = SlurmLab(tmp_path, slurm, partition="train")
    monkeypatch.chdir(lab.folder)
    yield lab
    lab.stop_all()


def waits(lab, run):
    "How a run waits, once Slurm has looked at it."
    lab.until(run, lambda: (wait := ask_queue(run_words(run.id))).cause and wait)
    return ask_queue(run_words(run.id))


def test_place_cause_and_what_starts_sooner(lab, slurm):
    "Four of eight GPUs are free on one node: four GPUs start at once, and the launch that is named does so."
    sbatch("--account=lab", "--nodes=3", "--gres=gpu:8", "--time=120")
    sbatch("--account=lab", "--nodelist=n4", "--gres=gpu:4", "--time=100")
    slurm.wait(lambda: slurm.run("squeue", "-h", "-t", "R", "-o", "%i").count("\n") == 2, "a busy cluster")
    first, second = (lab.steps(resources=Resources(procs=8, time="30m")) for _ in range(2))
    wait = waits(lab, first)
    assert (wait.place, wait.cause, wait.gpus, wait.limit) == (1, "resources", 8, 1800.0)
    lab.until(first, lambda: ask_queue(run_words(first.id)).scheduler)
    wait = ask_queue(run_words(first.id))
    assert wait.likely or "fewer than ten like jobs" in wait.too_few
    behind = waits(lab, second)
    assert (behind.place, behind.ahead, behind.ahead_gpus, behind.cause) == (2, 1, 8, "turn")
    (fewer,) = [one for one in wait.sooner if "4 GPUs" in one.change]
    assert fewer.start < wait.scheduler and "--procs 4" in fewer.command
    lab.target().cancel(second)
    four = lab.steps(resources=Resources(procs=4, time="30m"))
    lab.wait(four, "running")
    assert first.state() == "queued"


def test_maintenance_and_a_limit_that_ends_before_it(lab, slurm):
    "Slurm takes the shorter limit, and the run starts."
    flags = "flags=MAINT,IGNORE_JOBS"
    slurm.run(
        "scontrol", "create", "reservation", "reservationname=night", "users=root", "nodes=ALL", flags,
        "starttime=now+30minutes", "duration=60",
    )  # fmt: skip
    run = lab.steps(resources=Resources(gpus=1, time="50m"))
    wait = waits(lab, run)
    assert wait.cause == "maintenance" and any("night" in note for note in wait.notes)
    shorter = next(one for one in wait.sooner if "limit" in one.change)
    slurm.run(*shorter.command.split())
    lab.wait(run, "running")


def test_a_quota_is_said_and_no_change_promises_to_lift_it(lab):
    "--test-only knows nothing of an account's limits."
    small = {"account": "small"}
    lab.steps(resources=Resources(gpus=4), given=small)
    run = lab.steps(resources=Resources(gpus=2), given=small)
    waits(lab, run)
    lab.until(run, lambda: "limited" in ask_queue(run_words(run.id)).why)
    wait = ask_queue(run_words(run.id))
    assert wait.cause == "quota" and "'small' is limited to 4 GPUs" in wait.why and wait.sooner == ()


def test_a_gang_nodes_out_of_service_and_the_table(lab, slurm):
    "A run of four nodes, one of which is drained; the command says it to people and to programs."
    slurm.run("scontrol", "update", "nodename=n2", "state=drain", "reason=new cables")
    sbatch("--account=lab", "--nodelist=n1", "--gres=gpu:8", "--time=120")
    run = lab.steps(resources=Resources(nodes=3, gpus=8))
    wait = waits(lab, run)
    assert any("n2" in note and "new cables" in note for note in wait.notes)
    assert wait.cause in ("gang", "nodes down") and wait.gpus == 24
    said = CliRunner().invoke(main, ["queue", "--on", "cluster"])
    assert said.exit_code == 0 and run_words(run.id) in said.stdout and "somebody's" in said.stdout
    told = json.loads(CliRunner().invoke(main, ["queue", run_words(run.id), "--json"]).stdout)
    assert told["place"] == 1 and told["cause"] == wait.cause and told["state"] == "queued"


def test_a_range_from_accounting(lab, slurm):
    "Twelve jobs that started at once: a like one is expected in a moment, by both estimates or by the range alone."
    for _ in range(12):
        sbatch("--account=lab", "--gres=gpu:1", "--time=10", script="true")
    slurm.wait(lambda: not slurm.run("squeue", "-h").strip(), "an empty queue")
    done = ("sacct", "-a", "-X", "-n", "-P", "-S", "now-1hours", "-o", "State")
    slurm.wait(lambda: slurm.run(*done).count("COMPLETED") >= 12, "accounting")
    blocks = sbatch("--account=lab", "--nodes=4", "--gres=gpu:8", "--time=60")
    run = lab.steps(resources=Resources(gpus=1, time="10m"))
    wait = waits(lab, run)
    assert "like jobs" in (wait.likely.basis if wait.likely else wait.too_few)
    slurm.run("scancel", blocks)
    lab.wait(run, "running")


def test_a_preempted_run_says_by_whom_why_and_when_it_resumes(lab, slurm):
    "The job that takes its node is named on the card, with its owner and QOS, and the next start is expected."
    run = lab.steps(resources=Resources(gpus=8), given={"nodelist": "n1", "signal_seconds": 20})
    lab.life(run, 1)
    taker = sbatch(
        "--account=lab", "--qos=high", "--gres=gpu:8", "--nodelist=n1", "--time=2", script="sleep 30"
    )
    lab.until(run, lambda: events(run, "restart"))
    (restart,) = events(run, "restart")
    assert (
        restart["cause"] == "preempted"
        and f"preempted for job {taker} of root (QOS high" in restart["reason"]
    )
    assert "which gets n1" in restart["reason"]
    lab.until(run, lambda: (wait := Run(run).view.life.wait) and wait.start)
    shown = card_text(make_card(Run(run)))
    assert f"job {taker} of root" in shown and "expected to start" in shown
    lab.life(run, 2)
