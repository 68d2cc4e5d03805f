"""The Slurm target on a real cluster of four nodes with fake GPUs, accounting and QOS: the contract, and what a
Slurm user sees.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from following import events, states, until
from neighbours import check_neighbours, lay_out
from slurm_lab import SlurmLab, sbatch
from sshd import start_sshd

import fsdl_dev
from fsdl_dev.cli.target_test import check_target
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.events import read_events
from fsdl_dev.core.fold.view import RunView
from fsdl_dev.core.job import Resources
from fsdl_dev.core.rundir import RunDir
from fsdl_dev.core.states import FINAL
from fsdl_dev.engines.contract import EngineContract
from fsdl_dev.engines.slurm.script import slurm_name
from fsdl_dev.records.find import runs
from fsdl_dev.records.run import Run
from fsdl_dev.share.shell import plan_shell
from fsdl_dev.worker.processes import who_asks

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(slurm, tmp_path):
    lab = SlurmLab(tmp_path, slurm)
    yield lab
    lab.stop_all()


@pytest.mark.tier("contract", "test_killed_worker")
@pytest.mark.tier(
    "smoke", "test_launch_and_non_ascii_and_fetch", "test_gang_of_two_nodes", "test_requeue_keeps_the_run"
)
class TestContract(EngineContract):
    """On the login node."""

    name = "cluster"
    seconds = 300.0

    @pytest.fixture(autouse=True)
    def _cluster(self, slurm):
        self.slurm = slurm

    def fields(self) -> dict:
        return {"kind": "slurm", "account": "lab", "time": "15m", "grace_seconds": 10}

    def kill_worker(self, run) -> None:
        os.kill(
            next(
                event["pid"]
                for event in reversed(read_events(run.events))
                if event.get("pid") and event["kind"] == "state"
            ),
            signal.SIGKILL,
        )

    def requeue(self, run) -> None:
        self.slurm.run("scontrol", "requeue", json.loads((run.path / "engine.json").read_text())["id"])


@pytest.fixture(scope="module")
def login(tmp_path_factory, slurm_cluster):
    """The cluster's login node: an sshd whose sessions know where Slurm is."""
    sshd = start_sshd(
        tmp_path_factory.mktemp("login"),
        host="login",
        environment={"SLURM_CONF": slurm_cluster.conf},
    )
    yield sshd
    sshd.stop()


@pytest.mark.tier("contract", "test_launch_and_non_ascii_and_fetch", "test_killed_worker")
class TestContractBySsh(TestContract):
    """From a laptop: the run directory is a mirror of the one on the remote machine."""

    crowd = 40  # over one connection

    @pytest.fixture(autouse=True)
    def _laptop(self, login, tmp_path, monkeypatch):
        monkeypatch.setenv("FSDL_SSH_CONFIG", str(login.config))
        monkeypatch.delenv("SLURM_CONF")
        self.far = tmp_path / "far hömes"

    def fields(self) -> dict:
        import sys

        return {**super().fields(), "host": "login", "storage": str(self.far), "python": sys.executable}


# --- what the user sees
# -----------------------------------------------------------------------------------------------


def test_a_gang_in_one_allocation_with_its_gpus(lab):
    "Two nodes, two processes and two GPUs on each: one Slurm job."
    lab.write(
        "gang.py",
        """
        import os, torch
        torch.distributed.init_process_group("gloo")
        total = torch.ones(1); torch.distributed.all_reduce(total)
        print(int(total), os.environ["FSDL_NODE"], os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
        torch.distributed.destroy_process_group()
        """,
    )
    run = lab.submit("gang.py", resources=Resources(nodes=2, procs=2, time="5m"))
    assert lab.wait(run)["state"] == "succeeded", lab.told(run)
    nodes = events(run, "placed")[0]["nodes"]
    assert len(nodes) == 2 and {lab.target().logs(run, rank)[0] for rank in range(4)} == {
        f"4 {node} 0,1\n" for node in nodes
    }
    assert [event["name"] for event in events(run, "phase") if event["state"] == "end"] == [
        "snapshot",
        "environment",
        "training",
    ]
    lives = lab.until(run, lambda: events(run, "accounting"))
    assert (
        lives[0]["source"] == "sacct"
        and lives[0]["lives"] == 1
        and lives[0]["gpu_seconds"] == 4 * lives[0]["elapsed"]
    )


def test_a_module_with_what_is_beside_it(lab, tmp_path):
    "What git ignores is linked on shared storage; what the module writes is kept and fetched."
    lay_out(lab.folder)
    for words in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *words], cwd=lab.folder, check=True)
    where = {"folder": lab.folder, "on": "cluster", "gpus": 0, "say": None}
    check_neighbours(lambda what, **more: fsdl_dev.launch(what, **where, **more), tmp_path / "here")
    linked = fsdl_dev.launch("-m pkg.train", **where).wait(progress=False)
    assert linked.state == "succeeded" and "read 1,2" in linked.logs(), linked.failure


def test_the_script_is_what_dry_run_shows(lab):
    run, job = lab.make(
        "hello.py",
        "ü",
        resources=Resources(procs=2, gpus=2, nodes=2, time="90m"),
        given={"extra": ["--exclusive"], "qos": "normal", "mem": "4G"},
    )
    target = lab.target(extra=["--exclusive"], qos="normal", mem="4G")
    shown = target.plan(job, lab.project)
    target.submit(run, job, lab.project)
    sent = (run.path / "batch.sh").read_text()
    options = [line for line in shown.splitlines() if line.startswith("#SBATCH")]
    assert (
        any(line.startswith("#SBATCH --time=90 ") for line in options)
        and "#SBATCH --account=lab" in options
        and any("--exclusive" in line for line in options)
    )
    assert [line for line in sent.splitlines() if line.startswith("#SBATCH")][3:] == options[
        3:
    ]  # name, comment and output are the run's own
    assert f"#SBATCH --job-name={slurm_name(run.id)}" in sent
    said, does = (
        [line for line in text.splitlines() if not line.startswith("#SBATCH")]
        for text in (shown.replace("run RUN", f"run {run.id}").replace("/RUN", f"/{run.id}"), sent)
    )
    assert said == does and len(shown.splitlines()) <= 60, (
        shown
    )  # what is shown is what runs, and can be read at a glance
    assert lab.wait(run)["state"] == "succeeded", lab.told(run)
    told = lab.slurm.run("sacct", "-X", "-n", "-P", "-j", lab.job(run), "-o", "JobName,Timelimit,QOS,NNodes")
    assert told.strip() == f"{slurm_name(run.id)}|01:30:00|normal|2"


def test_position_start_and_reason_while_it_waits(lab, slurm):
    """The whole cluster is taken; the position counts those ahead, the start comes from Slurm's plan, and
    both change as others leave.
    """
    blocker = sbatch("--nodes=4", "--exclusive", "--time=10")
    ahead = sbatch("--nodes=4", "--exclusive", "--time=1", "--nice=-100")
    held = sbatch("--nodes=4", "--exclusive", "--time=1", "--hold")
    run = lab.submit("hello.py", resources=Resources(gpus=8, nodes=4, time="2m"))
    last = lab.until(
        run,
        lambda: [
            event
            for event in events(run, "queue")
            if event["position"] == 2
            and event["start"]
            and event["engine_reason"] in ("Priority", "Resources")
        ],
    )[-1]
    assert 0 < last["start"] - time.time() < 900
    assert "ahead" in last["reason"] or "next" in last["reason"]
    slurm.run("scancel", ahead, held)
    lab.until(run, lambda: any(event["position"] == 1 for event in events(run, "queue")))
    assert run.state() == "queued"
    slurm.run("scancel", blocker)
    assert lab.wait(run)["state"] == "succeeded", lab.told(run)


def test_whose_quota_it_is_and_what_is_left(lab):
    "The account small has four GPUs. A job that asks for more than there ever are is told so."
    first = lab.steps(resources=Resources(gpus=3), given={"account": "small"})
    lab.wait(first, "running")
    second = lab.steps(resources=Resources(gpus=2), given={"account": "small"})
    told = lab.until(
        second,
        lambda: [event for event in events(second, "queue") if event["engine_reason"] == "AssocGrpGRES"],
    )[-1]  # a busy scheduler says None first
    assert (
        told["reason"] == "the account 'small' is limited to 4 GPUs: 3 in use, 1 left"
        and told["position"] is None
    )
    third = lab.steps(resources=Resources(gpus=6), given={"account": "small"})
    lab.until(
        third,
        lambda: [
            event
            for event in events(third, "queue")
            if "it asks for 6, so it will never start" in event["reason"]
        ],
    )
    lab.stop_all()
    assert lab.wait(first)["state"] == "succeeded" and lab.wait(second)["state"] == "succeeded"
    lab.target().cancel(third)
    assert lab.wait(third)["state"] == "cancelled"


def test_one_job_for_each_user_of_a_qos(lab):
    long = lab.steps(given={"qos": "short", "time": "50m"})
    told = lab.until(
        long, lambda: [event for event in events(long, "queue") if "Wall" in event["engine_reason"]]
    )[-1]
    assert "lets a job run for 5 minutes at most" in told["reason"] and "--time 5m" in told["reason"]
    first = lab.steps(given={"qos": "short", "time": "4m"})
    lab.wait(first, "running")
    second = lab.steps(given={"qos": "short", "time": "4m"})
    told = lab.until(
        second,
        lambda: [
            event for event in events(second, "queue") if event["engine_reason"] == "QOSMaxJobsPerUserLimit"
        ],
    )[-1]
    assert told["reason"] == "the QOS 'short' is limited to 1 running job for each user: 1 in use, 0 left"


def test_a_sweep_is_one_array(lab, slurm):
    """Five runs, one submission; one that asks for something else is a job of its own.

    Each can be cancelled alone.
    """
    items = [lab.make("steps.py", str(lab.enough), given={"array_limit": 3}) for _ in range(5)] + [
        lab.make("hello.py", "x", resources=Resources(gpus=1), given={"array_limit": 3})
    ]
    target = lab.target(array_limit=3)
    target.submit_many(items, lab.project)
    runs = [run for run, _ in items]
    numbers = [lab.job(run) for run in runs]
    assert [number.partition("_")[2] for number in numbers] == ["0", "1", "2", "3", "4", ""] and len(
        {number.partition("_")[0] for number in numbers}
    ) == 2
    for run in runs[:3]:
        lab.wait(run, "running")
    waiting = lab.until(
        runs[4],
        lambda: [
            event for event in events(runs[4], "queue") if event["engine_reason"] == "JobArrayTaskLimit"
        ],
    )[-1]
    assert "array" in waiting["reason"]
    lab.life(runs[1], 1)
    target.cancel(runs[1])
    assert lab.wait(runs[1])["state"] == "cancelled" and "saved at" in target.logs(runs[1])[0]
    target.cancel(runs[4])
    assert lab.wait(runs[4])["state"] == "cancelled"
    lab.stop_all()
    assert [lab.wait(run)["state"] for run in (runs[0], runs[2], runs[3], runs[5])] == ["succeeded"] * 4, (
        lab.told(runs[3])
    )
    assert target.logs(runs[5])[0] == "hello x\n" and "finished" in target.logs(runs[3])[0]
    assert lab.until(runs[0], lambda: events(runs[0], "accounting"))[0]["lives"] == 1


def test_an_array_whose_submitter_died_is_found_again(lab):
    items = [lab.make("hello.py", str(number)) for number in range(3)]
    target = lab.target()
    target.submit_many(items, lab.project)
    for run, _ in items:  # as if the launcher had died before it wrote the answer down
        engine = json.loads((run.path / "engine.json").read_text())
        (run.path / "engine.json").write_text(
            json.dumps({key: engine[key] for key in ("kind", "name", "fields")})
        )
    assert [lab.wait(run)["state"] for run, _ in items] == ["succeeded"] * 3
    assert [target.logs(run)[0] for run, _ in items] == ["hello 0\n", "hello 1\n", "hello 2\n"]


def test_a_run_after_another(lab):
    first = lab.steps()
    second = lab.submit("hello.py", after=first.id)
    told = lab.until(second, lambda: events(second, "queue"))[-1]
    assert told["engine_reason"] == "Dependency" and told["reason"] == "it waits for another job to end"
    lab.wait(first, "running")
    lab.stop_all()
    assert lab.wait(first)["state"] == "succeeded" and lab.wait(second)["state"] == "succeeded"
    assert events(second, "placed")[0]["t"] > events(first, "state")[-1]["t"]
    assert (
        lab.wait(lab.submit("hello.py", after=first.id))["state"] == "succeeded"
    )  # it has succeeded already


def test_a_run_after_one_that_failed_says_that_it_never_starts(lab):
    lab.write(
        "fails.py",
        "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\nraise"
        " ValueError('no')\n",
    )
    first = lab.submit("fails.py", str(lab.enough))
    second = lab.submit("hello.py", after=first.id)
    lab.stop_all()
    assert lab.wait(first)["state"] == "failed"
    end = lab.wait(second)
    assert end["state"] == "cancelled" and end["reason"].startswith(
        f"{first.id}, which it was to start after, did not succeed"
    )
    with pytest.raises(FsdlError, match="nothing can start after"):
        lab.submit("hello.py", after=first.id)


def test_cancel_while_it_waits_and_while_it_runs(lab, slurm):
    waiting = lab.submit("hello.py", given={"extra": ["--hold"]})
    told = lab.until(waiting, lambda: events(waiting, "queue"))[-1]
    assert told["reason"] == f"it is held by its owner: scontrol release {lab.job(waiting)}"
    lab.target(extra=["--hold"]).cancel(waiting)
    assert lab.wait(waiting)["state"] == "cancelled" and states(waiting) == ["queued", "cancelled"]
    running = lab.steps(resources=Resources(gpus=2))
    lab.life(running, 1)
    lab.target().cancel(running)
    assert lab.wait(running)["state"] == "cancelled"
    assert "saved at" in lab.target().logs(running)[0] and states(running)[-2:] == ["stopping", "cancelled"]
    assert events(running, "state")[-1]["reason"].startswith(f"cancelled by {who_asks()}")


def test_the_cluster_at_a_glance(lab, slurm):
    "Free GPUs, down nodes with their keeper's words, reservations, the queue."
    look = lab.target().look()
    assert (look.reachable, look.gpus, look.gpus_free, look.running, look.queued) == (
        True,
        32,
        32,
        0,
        0,
    ) and look.notes == ()
    slurm.run("scontrol", "update", "nodename=n4", "state=drain", "reason=fan broken, ask Zoë")
    slurm.run(
        "scontrol",
        "create",
        "reservation",
        "reservationname=maint",
        "starttime=now+3600",
        "duration=60",
        "users=root",
        "nodes=n3",
        "flags=maint",
    )
    run = lab.steps(resources=Resources(gpus=2))
    lab.wait(run, "running")
    lab.target().engine.slurm._kept.clear()
    look = lab.target().look()
    assert look.gpus_free == 22 and look.running == 1 and "3 of 4 nodes in service" in look.detail
    assert look.notes[0] == "n4: drained (fan broken, ask Zoë)" and look.notes[1].startswith(
        "reservation maint: 1 node, maintenance, "
    )
    (row,) = lab.target().queue()
    assert row.run == run.id and [*row.slots] == events(run, "placed")[0]["nodes"] and row.owner == "root"


def test_a_job_for_a_drained_node_waits_for_it(lab, slurm):
    """sbatch queues it, and so it is not refused; one that no node can run is, whatever is drained."""
    slurm.run("scontrol", "update", "nodename=n1", "state=drain", "reason=new disks")
    run = lab.submit("hello.py", given={"nodelist": "n1"})
    reason = lab.until(run, lambda: events(run, "queue"))[0]["reason"]
    assert "down, drained or reserved" in reason, reason
    slurm.run("scontrol", "update", "nodename=n1", "state=resume")
    assert lab.wait(run)["state"] == "succeeded", lab.told(run)


def test_a_job_that_a_maintenance_keeps_waiting(lab, slurm):
    slurm.run(
        "scontrol",
        "create",
        "reservation",
        "reservationname=maint",
        "starttime=now+120",
        "duration=60",
        "users=root",
        "nodes=ALL",
        "flags=maint",
    )
    run = lab.submit("hello.py", resources=Resources(gpus=1, time="30m"))
    told = lab.until(
        run,
        lambda: [
            event
            for event in events(run, "queue")
            if event["engine_reason"] not in ("None", "Priority", "Resources")
        ],
    )[-1]
    assert told["engine_reason"].startswith("ReqNodeNotAvail") and (
        "maintenance" in told["reason"] or "reserved" in told["reason"]
    )
    slurm.run("scontrol", "delete", "reservationname=maint")
    assert lab.wait(run)["state"] == "succeeded"


@pytest.mark.parametrize(
    "given, resources, told, fix",
    [
        ({"account": "lap"}, {}, "account 'lap' cannot be used", "--set account="),
        ({"partition": "tran"}, {}, "no partition 'tran'", "--set partition="),
        ({"qos": "hihg"}, {}, "QOS 'hihg' cannot be used", "--set qos="),
        ({}, {"gpus": 9}, "No node of the partition has", "--gpus"),
        ({}, {"nodes": 5}, "More nodes are asked for", "--nodes"),
        ({"partition": "inter"}, {"time": "5h"}, "longer than the partition allows", "--time"),
        ({"gpu_type": "h100"}, {"gpus": 1}, "(Slurm says:", "sinfo"),
        ({"constraint": "x"}, {}, "No node has the feature 'x'", "--set constraint="),
        ({"reservation": "nope"}, {}, "reservation 'nope'", "--set reservation="),
        ({"nodelist": "n77"}, {}, "does not have all nodes", "--set nodelist="),
        ({"mem": "900G"}, {}, "No node of the partition has what is asked for", "sinfo"),
        ({"extra": ["--exclusivo"]}, {}, "options", "extra"),
    ],
)
def test_refused_before_anything_is_written(lab, slurm, given, resources, told, fix):
    before = slurm.run("squeue", "-h", "-t", "all", "-o", "%i").split()
    with pytest.raises(FsdlError) as caught:
        lab.submit("hello.py", given=given, resources=Resources(**{"gpus": 0, **resources}))
    assert told in caught.value.what and fix in caught.value.fix + caught.value.where, caught.value
    assert (
        not lab.runs
        and not (lab.project.store / "runs").exists()
        or not os.listdir(lab.project.store / "runs")
    )
    assert set(slurm.run("squeue", "-h", "-t", "all", "-o", "%i").split()) <= set(
        before
    )  # Slurm forgets what has ended


def test_the_view_of_a_run_tells_lives_and_accounted_time(lab, slurm):
    run = lab.steps(resources=Resources(gpus=2))
    lab.life(run, 1)
    slurm.run("scontrol", "requeue", lab.job(run))
    lab.life(run, 2)
    lab.stop_all()
    assert lab.wait(run)["state"] == "succeeded", lab.told(run)
    account = lab.until(run, lambda: events(run, "accounting"))[0]
    assert account["lives"] == 2 and account["gpu_seconds"] == 2 * account["elapsed"] > 0
    view = RunView().update(read_events(run.events))
    assert (
        view.state == "succeeded"
        and len(events(run, "restart")) == 1
        and "resumed from" in lab.target().logs(run)[0]
    )


def test_an_ended_run_is_asked_once_more_what_it_was_charged(lab, slurm):
    """Nobody followed it to its end.

    Whoever shows it has Slurm asked, in a process of its own, and the card says it.
    """
    run = fsdl_dev.launch("hello.py", on="cluster", gpus=1, folder=lab.folder, say=None).dir
    slurm.wait(lambda: run.state() in FINAL, "the end of the run, as its worker tells it")
    slurm.wait(
        lambda: lab.target().engine.cost(run, lab.target().engine.record(run)), "Slurm's own account of it"
    )
    assert not events(run, "accounting")
    program = (
        "import sys; from fsdl_dev.cli.main import main; sys.argv = ['fsdl', 'show', sys.argv[1]]; main()"
    )
    card = lambda: (
        subprocess.run(
            [sys.executable, "-c", program, run.id],
            cwd=lab.folder,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "COLUMNS": "120"},
        ).stdout
    )  # noqa: E731
    until(
        lambda: "GPU-seconds (sacct)" in card(), card
    )  # a Slurm that takes longer than two seconds is not waited for
    assert [event["lives"] for event in events(run, "accounting")] == [1]


def test_hundreds_of_runs_are_one_question(lab, slurm):
    "The status of all of them is one squeue, whatever their number; the answer is right for each."
    items = [lab.make("hello.py", str(number), given={"extra": ["--hold"]}) for number in range(60)]
    target = lab.target(extra=["--hold"])
    target.submit_many(items[:50], lab.project)
    for item in items[50:]:
        target.submit_many([item], lab.project)
    runs, asked, plain = [run for run, _ in items], [], target.engine.shell.run
    target.engine.slurm._kept.clear()
    target.engine.shell.run = lambda command, **more: (asked.append(command), plain(command, **more))[1]
    seen = target.engine.poll(runs)
    del target.engine.shell.run
    assert {seen[run.id].state for run in runs} == {"queued"} and {
        seen[run.id].engine_reason for run in runs
    } == {"JobHeldUser"}
    assert sum("squeue" in str(command).split("; ")[-1] for command in asked) == 1 and not any(
        "sacct " in str(command).split("; ")[-1] for command in asked
    )
    subprocess.run(["scancel", "--user=root"], env=os.environ, check=True)
    slurm.wait(lambda: not slurm.run("squeue", "-h").strip(), "an empty queue")
    target.engine.slurm._kept.clear()
    lab.slurm.wait(
        lambda: (
            target.engine.slurm._kept.clear(),
            {s.final for s in target.engine.poll(runs).values()} == {"cancelled"},
        )[1],
        "accounting to catch up",
    )


def test_fsdl_targets_test_says_which_step_fails(lab, slurm):
    """A tiny job on two nodes through every step; a wrong account by another value for one field; and a full
    cluster, from whose queue it is taken again.
    """

    def test(patience: float = 300.0, given: dict | None = None, **resources) -> tuple[dict, list]:
        steps = check_target(lab.project, "cluster", Resources(time="5m", **resources), patience, given=given)
        return {step.name: step for step in steps}, [step.name for step in steps if step.verdict == "fail"]

    steps, failed = test(nodes=2, gpus=2)
    assert not failed and steps["start"].text == "n1, n2 · gpu [0, 1]", [
        step.line() for step in steps.values()
    ]
    steps, failed = test(gpus=0, given={"account": "lob"})
    assert (
        failed == ["submit"]
        and "'lob'" in steps["submit"].text
        and steps["submit"].fix.startswith("--set account=")
    ), steps
    sbatch("--exclusive", "--nodes=4")
    slurm.wait(lambda: "R" in slurm.run("squeue", "-h", "-o", "%t"), "the cluster to be full")
    steps, failed = test(15.0, gpus=0)
    assert (
        failed == ["start"]
        and "position 1 in the queue" in steps["start"].text
        and "--timeout 60" in steps["start"].fix
    ), [step.line() for step in steps.values()]
    assert (
        len(slurm.run("squeue", "-h").splitlines()) == 1
        and list((lab.project.store / "runs").iterdir()) == []
    )


BEHIND = """\
import sys, time
from fsdl_dev.core.events import current_writer
from fsdl_dev.core.event_kinds import Metric, Progress
bad, writer = float(sys.argv[2]) > 1, current_writer()
for step in range(9):
    writer.write(Progress(step=step + 1, total=9, stage="train"))
    writer.write(Metric(step=step, values={"acc": 0.1 if bad else 0.5 + float(sys.argv[2])}))
while bad:
    time.sleep(0.1)
"""


def test_asha_ends_the_job_of_a_trial_that_falls_behind(lab):
    """The third trial would never end: its job is cancelled in Slurm, and the fourth takes its place."""
    lab.write("behind.py", BEHIND)
    asked = {"each": {"rate": [0.1, 0.2, 9.0, 0.3]}, "search": "grid", "stop": "asha", "best": "max:acc"}
    run = fsdl_dev.launch("behind.py", folder=lab.folder, on="cluster", slots=1, say=None, **asked)
    run.wait(timeout=300, progress=False)
    assert run.state == "succeeded" and run.result["trials"] == {"done": 3, "stopped": 1}, run.logs()
    ended = {event["params"]["rate"]: event for event in events(run, "trial")}
    assert "rung 1 of asha" in ended[9.0]["why"] and ended[0.3]["number"] == 3
    stopped, after = (fsdl_dev.load_run(ended[rate]["run"], folder=lab.folder) for rate in (9.0, 0.3))
    assert stopped.state == "cancelled"
    lab.until(
        stopped.dir, lambda: lab.job(stopped.dir) not in lab.slurm.run("squeue", "-h", "-o", "%i").split()
    )
    assert after.view.life.times["starting"] >= stopped.view.life.times["cancelled"]


PAIR = """\
import os, sys, time
from pathlib import Path
from fsdl_dev.core.events import current_writer
from fsdl_dev.core.event_kinds import Metric
folder = Path(os.environ["FSDL_STORE"]) / "pair"
folder.mkdir(exist_ok=True)
(folder / os.environ["FSDL_RUN_ID"]).touch()
while len(list(folder.iterdir())) < 2:
    time.sleep(0.05)
current_writer().write(Metric(step=0, values={"acc": float(sys.argv[2])}))
"""


def test_trials_of_a_sweep_run_side_by_side(lab):
    """Two trials wait for each other, so both run at once; a third is submitted when one has ended."""
    lab.write("pair.py", PAIR)
    each = {"lr": [0.1, 0.2, 0.3]}
    run = fsdl_dev.launch(
        "pair.py", folder=lab.folder, on="cluster", each=each, best="max:acc", slots=2, say=None
    )
    run.wait(timeout=300, progress=False)
    assert run.state == "succeeded" and run.result["acc"] == 0.3, run.logs()
    trials = [
        Run(RunDir(run.store / "runs" / row.id)) for row in runs(tag=f"sweep={run.words}", folder=lab.folder)
    ]
    assert len(trials) == 3 and {trial.job.launch.target for trial in trials} == {"cluster"}
    spans = [(trial.view.life.times["running"], trial.view.life.times["succeeded"]) for trial in trials]
    assert max(sum(begin <= moment <= end for begin, end in spans) for moment, _ in spans) == 2


def test_a_shell_in_the_allocation_and_on_the_login_node(lab):
    run = Run(lab.submit("steps.py", lab.enough))
    until(lambda: run.state == "running" and run.tail())
    plan = plan_shell(run, command='ls; test -n "$SLURM_JOB_ID" && exit 5')
    done = subprocess.run(plan.words, capture_output=True, text=True, timeout=120)
    assert "its allocation" in plan.where and done.returncode == 5 and "steps.py" in done.stdout, done
    lab.enough.touch()
    until(lambda: run.state in FINAL)
    plan = plan_shell(run, command='test -z "$SLURM_JOB_ID" && exit 6')
    done = subprocess.run(plan.words, capture_output=True, text=True, timeout=120)
    assert "login node" in plan.where and done.returncode == 6, done
