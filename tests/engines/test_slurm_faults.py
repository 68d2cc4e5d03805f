"""Slurm on a bad day: killed in the middle of a submission, a controller that restarts or forgets, nodes that
die, preemption, limits, a login node out of reach.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from following import events, states, until
from slurm_lab import SlurmLab, sbatch
from sshd import start_sshd

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.events import read_events
from fsdl_dev.core.fold.view import RunView
from fsdl_dev.core.job import Resources
from fsdl_dev.core.rundir import write_json
from fsdl_dev.core.states import FINAL
from fsdl_dev.engines.remote.follow import MOMENT_SECONDS
from fsdl_dev.engines.remote.target import RemoteTarget
from fsdl_dev.engines.slurm.client import submit_command
from fsdl_dev.engines.slurm.parse import SACCT, parse_lives
from fsdl_dev.engines.slurm.script import slurm_name
from fsdl_dev.engines.slurm.target import SlurmEngine
from fsdl_dev.worker.failures import explain_failure

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture
def lab(slurm, tmp_path):
    lab = SlurmLab(tmp_path, slurm)
    yield lab
    lab.stop_all()


@pytest.fixture
def far_lab(slurm, tmp_path, monkeypatch):
    """The same cluster from a laptop."""
    sshd = start_sshd(tmp_path / "sshd", host="login", environment={"SLURM_CONF": slurm.conf})
    monkeypatch.setenv("FSDL_SSH_CONFIG", str(sshd.config))
    monkeypatch.delenv("SLURM_CONF")
    lab = SlurmLab(tmp_path, slurm, host="login", storage=str(tmp_path / "far"), python=sys.executable)
    lab.sshd = sshd
    yield lab
    lab.stop_all()
    sshd.stop()


def jobs_of(slurm, run) -> list[str]:
    """Every Slurm job that a run has become, ended ones too."""
    return slurm.run("squeue", "-h", "-t", "all", "-o", "%F", "-n", slurm_name(run.id)).split()


# --- submitted once
# -----------------------------------------------------------------------------------------------------

SUBMIT = """
import json, sys
from pathlib import Path
from fsdl_dev.core.rundir import RunDir
from fsdl_dev.core.settings import find_project
from fsdl_dev.engines.target import get_target
run = RunDir(Path(sys.argv[1]))
project = find_project(sys.argv[2])
get_target("cluster", project).submit(run, run.load_job(), project)
"""


@pytest.mark.parametrize("victim", ["kernel", "kernel and shell"])
@pytest.mark.parametrize("heard", [True, False])
def test_killed_between_the_question_and_the_answer(lab, slurm, tmp_path, monkeypatch, victim, heard):
    """sbatch runs (or does not), and before its answer has been written down everything that waits for it is
    killed: one job in the end.
    """
    run, _ = lab.make("hello.py")
    real = subprocess.run(["sh", "-c", "command -v sbatch"], capture_output=True, text=True).stdout.strip()
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(f"""#!/bin/sh
        case "$*" in *--test-only*) exec {real} "$@" ;; esac
        {f'{real} "$@" > {folder}/said' if heard else "true"}
        kill -9 $(cat {folder}/kernel)
        {"kill -9 $PPID $(ps -o ppid= -p $PPID)" if "shell" in victim else ""}
        sleep 1
        {"" if heard else f'{real} "$@" >{folder}/said' if "shell" not in victim else "exit 1"}
        cat {folder}/said
        """)
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    launcher = subprocess.Popen(
        [sys.executable, "-c", SUBMIT, str(run.path), str(lab.folder)], start_new_session=True
    )
    (folder / "kernel").write_text(str(launcher.pid))
    assert launcher.wait(300) == -signal.SIGKILL
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(os.pathsep)[2])
    if heard or "shell" not in victim:
        assert lab.wait(run)["state"] == "succeeded", lab.told(run)
        assert len(jobs_of(slurm, run)) == 1
    else:  # Slurm never had it: the run says so, and nothing is queued behind anybody's back
        last = lab.wait(run)
        assert last["state"] == "lost" and "nothing is queued" in last["reason"] and not jobs_of(slurm, run)


def test_the_same_run_handed_over_by_several_at_once(lab, slurm):
    run, job = lab.make("hello.py")
    target = lab.target()
    target.submit(run, job, lab.project)
    (run.path / "slurm.id").unlink(missing_ok=True)
    far = target.engine.far(run.id)
    line = submit_command(far.run, "batch.sh", slurm_name(run.id))
    several = [
        subprocess.Popen(["sh", "-c", line], stdout=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(6)
    ]
    answers = {process.communicate(timeout=300)[0].strip() for process in several}
    assert answers == {lab.job(run)} and len(jobs_of(slurm, run)) == 1
    assert lab.wait(run)["state"] == "succeeded"


def test_the_connection_is_cut_while_sbatch_runs(far_lab, slurm, tmp_path):
    """The laptop's connection breaks after sbatch was asked: it is asked again over a new one, and there is
    one job.
    """
    lab = far_lab
    folder = tmp_path / "bin"
    folder.mkdir()
    real = subprocess.run(["sh", "-c", "command -v sbatch"], capture_output=True, text=True).stdout.strip()
    (folder / "sbatch").write_text(f"""#!/bin/sh
        case "$*" in *--test-only*) exec {real} "$@" ;; esac
        {real} "$@" > {folder}/said
        if [ ! -e {folder}/cut ]; then
            touch {folder}/cut; n=0
            while [ ! -e {folder}/done ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n + 1)); done
        fi
        cat {folder}/said
        """)
    (folder / "sbatch").chmod(0o755)
    lab.sshd.stop()
    lab.sshd.command[1:1] = ["-o", f"SetEnv=SLURM_CONF={slurm.conf} PATH={folder}:/usr/bin:/bin"]
    lab.sshd.start()
    run, job = lab.make("hello.py")
    import threading

    def cut():
        end = time.monotonic() + 240
        while not (folder / "cut").exists() and time.monotonic() < end:
            time.sleep(0.02)
        lab.sshd.cut()
        (folder / "done").touch()

    thread = threading.Thread(target=cut)
    thread.start()
    lab.target().submit(run, job, lab.project)
    thread.join()
    assert lab.wait(run)["state"] == "succeeded", lab.told(run)
    assert len(jobs_of(slurm, run)) == 1


# --- the controller
# ---------------------------------------------------------------------------------------------------------


def test_the_controller_restarts_while_a_run_waits_and_while_one_runs(lab, slurm):
    running = lab.steps(resources=Resources(gpus=8))
    lab.wait(running, "running")
    waiting = lab.submit("hello.py", given={"nodelist": "n1", "extra": ["--exclusive", "--begin=now+8"]})
    lab.life(running, 1)
    slurm.saved(lab.job(running))
    slurm.script("controller", "kill")
    until = time.monotonic() + 4
    while time.monotonic() < until:
        assert lab.target().poll(running) == "running" and lab.target().poll(waiting) == "queued"
        time.sleep(0.2)
    slurm.script("controller", "start")
    lab.stop_all()
    assert lab.wait(running)["state"] == "succeeded" and lab.wait(waiting)["state"] == "succeeded", lab.told(
        waiting
    )
    assert not events(running, "restart") and states(running) == [
        "queued",
        "starting",
        "running",
        "succeeded",
    ]


def test_a_launch_while_the_controller_is_down_waits_for_it(lab, slurm):
    run, job = lab.make("hello.py")
    slurm.script("controller", "stop")
    process = subprocess.Popen(
        [sys.executable, "-c", SUBMIT, str(run.path), str(lab.folder)], stderr=subprocess.PIPE, text=True
    )
    time.sleep(4)
    assert process.poll() is None
    slurm.script("controller", "start")
    assert process.wait(300) == 0, process.stderr.read()
    assert lab.wait(run)["state"] == "succeeded" and len(jobs_of(slurm, run)) == 1


def test_a_silent_controller_is_said_and_harms_nothing(lab, slurm):
    slurm.script("controller", "stop")
    look = lab.target().look()
    assert (
        not look.reachable
        and "controller does not answer" in look.detail
        and look.fix.startswith("scontrol ping")
    )
    with pytest.raises(FsdlError, match="controller does not answer"):
        lab.make("hello.py")
    assert not lab.runs
    slurm.script("controller", "start")
    slurm.wait(
        lambda: slurm.run("sinfo", "-h", "-N", "-p", "train", "-o", "%T").split() == ["idle"] * 4, "its nodes"
    )
    assert lab.wait(lab.submit("hello.py"))["state"] == "succeeded"


def test_a_job_that_the_controller_forgot_and_whose_number_went_to_another(lab, slurm):
    """Killed within seconds of a submission, a controller forgets the job and gives its number away.

    The run says that it is lost; the other job is left alone.
    """
    run, job = lab.make("hello.py", given={"extra": ["--begin=now+600"]})
    lab.target(extra=["--begin=now+600"]).submit(run, job, lab.project)
    number = lab.job(run)
    slurm.run("scancel", number)
    slurm.wait(lambda: not slurm.state(number), "the job to leave")
    other = sbatch("--begin=now+600")
    engine = json.loads((run.path / "engine.json").read_text())
    write_json(
        run.path / "engine.json", {**engine, "id": other}
    )  # the number that Slurm has given to somebody else's job
    last = lab.wait(run)
    assert (
        last["state"] == "lost"
        and "does not know the job any more" in last["reason"]
        or "left the queue" in last["reason"]
    ), last
    lab.target().cancel(run)
    assert slurm.state(other) == "PENDING"


# --- machines taken away
# -------------------------------------------------------------------------------------------------------


def test_a_node_dies_in_a_run_of_two(lab, slurm):
    run = lab.steps(resources=Resources(nodes=2, gpus=8))
    lab.life(run, 1)
    nodes = events(run, "placed")[0]["nodes"]
    slurm.kill_node(nodes[1])
    lab.until(run, lambda: "queued" in states(run)[1:])
    lab.life(run, 2)
    assert nodes[1] not in events(run, "placed")[1]["nodes"]
    lab.stop_all()
    assert lab.wait(run)["state"] == "succeeded", lab.told(run)
    (restart,) = events(run, "restart")
    assert restart["cause"] == "node" and restart["from_step"] and "resumed from" in lab.target().logs(run)[0]
    account = lab.until(run, lambda: events(run, "accounting"))[0]
    assert account["lives"] == 2 and account["gpu_seconds"] == 16 * account["elapsed"]


def test_preempted_twice(lab, slurm):
    run = lab.steps(resources=Resources(gpus=8), given={"nodelist": "n1", "signal_seconds": 20})
    for number in (1, 2):
        lab.life(run, number)
        sbatch("--qos=high", "--gres=gpu:8", "--nodelist=n1", "--time=1", script="sleep 2")
        lab.until(run, lambda: len(events(run, "restart")) == number)
    lab.life(run, 3)
    lab.stop_all()
    assert lab.wait(run)["state"] == "succeeded", lab.told(run)
    assert [event["cause"] for event in events(run, "restart")] == ["preempted"] * 2 and lab.target().logs(
        run
    )[0].count("resumed from") == 2
    account = lab.until(run, lambda: events(run, "accounting"))[0]
    assert account["lives"] == 3, account


def test_taken_away_while_its_environment_is_made(lab, slurm):
    """Requeued, it makes the environment again; whoever cancels it, and however, it is cancelled."""
    slow = lab.folder.parent / "slow uv"
    slow.mkdir()
    (slow / "uv").write_text("#!/bin/sh\nexec sleep 3000\n")
    (slow / "uv").chmod(0o755)

    def makes(run) -> list[str]:
        return [event["state"] for event in events(run, "phase") if event["name"] == "environment"]

    runs = [
        lab.submit(
            "hello.py",
            given={"environment": "lock", "setup": [f"export PATH='{slow}':\"$PATH\""]},
            resources=Resources(gpus=0),
        )
        for _ in range(2)
    ]
    lab.until(runs[0], lambda: makes(runs[0]) == ["start"])
    slurm.run("scontrol", "requeue", lab.job(runs[0]))
    lab.until(runs[0], lambda: makes(runs[0]) == ["start", "fail", "start"])
    assert runs[0].state() == "queued" and not runs[0].result_file.exists(), lab.told(runs[0])
    slurm.run("scancel", lab.job(runs[0]))
    lab.until(runs[1], lambda: "start" in makes(runs[1]))
    lab.target().cancel(runs[1])
    for run in runs:
        assert lab.wait(run)["state"] == "cancelled", lab.told(run)


def test_the_controller_is_away_when_a_run_is_to_be_queued_again(lab, slurm):
    """It is asked until it is back: exit status 85, which not every cluster takes for a wish to go on, is not
    needed.
    """
    run = lab.steps(resources=Resources(gpus=8), given={"nodelist": "n1"})
    lab.life(run, 1)
    slurm.saved(lab.job(run))
    slurm.script("controller", "kill")
    try:
        os.kill(run.last_state()["pid"], signal.SIGUSR1)
        lab.until(run, lambda: events(run, "restart"))
        time.sleep(3)
    finally:
        slurm.script("controller", "start")
    lab.life(run, 2)
    lab.stop_all()
    assert lab.wait(run)["state"] == "succeeded", lab.told(run)
    assert (
        not [event for event in events(run, "note") if "RequeueExit" in event["text"]]
        and len(events(run, "restart")) == 1
    )


def began_and_forgotten(lab, slurm, tmp_path):
    """A run in its first life and the file of the controller's state; the controller is killed, and an older state
    lies in tmp_path.
    """
    run = lab.steps(resources=Resources(gpus=8), given={"nodelist": "n1", "extra": ["--hold"]})
    memory = slurm.saved(lab.job(run))
    shutil.copy(memory, tmp_path / "before it began")
    slurm.run("scontrol", "release", lab.job(run))
    lab.life(run, 1)
    slurm.script("controller", "kill")
    return run, memory


def test_the_controller_comes_back_and_has_forgotten_that_the_run_began(lab, slurm, tmp_path):
    """As it does after a crash in the minutes that follow a start by backfill.

    Slurm ends the old life when its node tells of it; one that had gone by itself would be held.
    """
    run, memory = began_and_forgotten(lab, slurm, tmp_path)
    try:
        os.kill(run.last_state()["pid"], signal.SIGUSR1)
        lab.until(run, lambda: events(run, "restart"))
        shutil.copy(tmp_path / "before it began", memory)
    finally:
        slurm.script("controller", "start")
    slurm.run("scontrol", "release", lab.job(run))
    lab.life(run, 2)
    lab.stop_all()
    assert lab.wait(run)["state"] == "succeeded", lab.told(run)
    assert len(events(run, "restart")) == 1 and "resumed from" in lab.target().logs(run)[0]


@pytest.mark.parametrize("worker", ["waits for the controller", "is killed"])
def test_a_run_that_ends_while_the_controller_is_away_is_not_queued_again(lab, slurm, tmp_path, worker):
    """The controller comes back from an older state, in which the job waits. It must not start it again: the node
    refuses that and is drained, and the job is held. The worker takes it out of the queue, or the next look at the run.
    """
    run, memory = began_and_forgotten(lab, slurm, tmp_path)
    try:
        lab.stop_all()
        until(lambda: run.state() in FINAL, lambda: lab.told(run))
        if worker == "is killed":
            os.kill(run.last_state("worker")["pid"], signal.SIGKILL)
        shutil.copy(tmp_path / "before it began", memory)
    finally:
        slurm.script("controller", "start")
    if worker == "is killed":
        slurm.run("scontrol", "release", lab.job(run))
        slurm.wait(lambda: "launch failed" in slurm.run("squeue", "-h", "-t", "PD", "-o", "%r"), "a held job")
        assert lab.target().settle(run, 30) or lab.told(run)
    slurm.wait(lambda: not slurm.run("squeue", "-h").strip(), "an empty queue")
    (note,) = [event["text"] for event in events(run, "note") if "queue" in event["text"]]
    assert run.state() == "succeeded" and "cancelled there" in note
    assert ("sinfo -R" in note) == (worker == "is killed")


@pytest.mark.tier("long")
def test_the_time_limit_of_its_allocation(lab):
    "The run saves before the limit, is queued again, and says why."
    run = lab.submit(
        "steps.py",
        str(lab.enough),
        resources=Resources(gpus=0),
        given={"time": "1m", "grace_seconds": 5.0, "max_restarts": 1},
    )
    lab.until(run, lambda: events(run, "restart"))
    (restart,) = events(run, "restart")
    assert restart["cause"] == "limit" and restart["from_step"]
    lab.life(run, 2)
    lab.stop_all()
    assert lab.wait(run)["state"] == "succeeded" and "saved at" in lab.target().logs(run)[0]


def test_ended_by_slurm_without_a_word(lab, slurm):
    """A worker that is killed outright writes no final state: Slurm's accounting says how and when the job ended.
    Each look here is that of a command of its own.
    """
    run = lab.steps(given={"requeue": False})
    lab.life(run, 1)
    os.kill(run.last_state("worker")["pid"], signal.SIGKILL)

    def look() -> bool:
        return RemoteTarget(SlurmEngine(lab.project, "cluster", {"account": "lab"})).poll(run) in FINAL

    until(look, lambda: lab.told(run))
    last, view = run.last_state(), RunView().update(read_events(run.events))
    assert last["state"] in ("failed", "lost") and "last.ckpt" in last["reason"], last
    lives = parse_lives(slurm.run("env", "SLURM_TIME_FORMAT=%s", *SACCT.split(), "-j", lab.job(run)))
    assert last["ended"] == lives[-1].end and view.life.elapsed() <= max(
        0, last["ended"] - view.life.times["starting"]
    )


HOG = """
import time
keep = []
for _ in range(60):
    keep.append(bytearray(b"x") * (32 << 20))
    time.sleep(0.1)
time.sleep(600)
"""


@pytest.mark.parametrize("nodes", [1, 2])  # Slurm ends the worker itself, or a step that the worker waits for
def test_a_job_that_takes_more_memory_than_it_asked_for(lab, nodes):
    "The cluster's jobacct_gather kills it; the failure names the limit and how much was taken."
    lab.write("hog.py", HOG)
    resources = Resources(gpus=0, nodes=nodes)
    run = lab.submit("hog.py", resources=resources, given={"mem": "600M", "requeue": False})
    last, failure = lab.wait(run), explain_failure(run)
    assert last["state"] == "failed" and "more memory than Slurm allows: 600 MiB" in last["reason"], lab.told(
        run
    )
    assert failure.oom["total"] == 600 << 20 < failure.oom["asked"] and "--set mem=MORE" in failure.command


def test_a_life_that_could_say_nothing_is_recorded_as_requeued(lab, slurm):
    run = lab.steps()
    lab.life(run, 1)
    os.kill(run.last_state("worker")["pid"], signal.SIGSTOP)
    slurm.run("scontrol", "requeue", lab.job(run))
    lab.life(run, 2)
    lab.stop_all()
    assert lab.wait(run)["state"] == "succeeded", lab.told(run)
    assert [event["reason"] for event in events(run, "restart")] == ["Slurm queued it again"]


def test_a_run_that_lost_its_node_waits_again_at_one_look(lab, slurm):
    run = lab.steps(given={"nodelist": "n1"})
    lab.life(run, 1)
    slurm.kill_node("n1")
    slurm.wait(lambda: slurm.state(lab.job(run)) == "PENDING", "the controller to notice")
    until(lambda: time.time() - run.last_state()["t"] > MOMENT_SECONDS)
    fields = {"account": "lab", "nodelist": "n1"}
    assert RemoteTarget(SlurmEngine(lab.project, "cluster", fields)).poll(run) == "queued", lab.told(run)


# --- the login node
# ----------------------------------------------------------------------------------------------------------------


def test_the_login_node_is_out_of_reach_for_a_while(far_lab, slurm):
    "The run goes on, the state stays what it was, and everything that happened meanwhile arrives afterwards."
    lab = far_lab
    run = lab.steps(resources=Resources(gpus=1))
    lab.life(run, 1)
    lab.sshd.stop()
    before, away = events(run, "checkpoint")[-1]["step"], time.monotonic()
    while time.monotonic() - away < 20:
        assert lab.target().poll(run) == "running"
        time.sleep(0.5)
    assert events(run, "checkpoint")[-1]["step"] <= before + 40
    lab.sshd.start()
    lab.until(run, lambda: events(run, "checkpoint")[-1]["step"] > before + 200)
    assert not events(run, "restart")
    lab.stop_all()
    assert lab.wait(run)["state"] == "succeeded", lab.told(run)


def test_slurm_is_not_on_the_path_of_the_login_node(slurm, tmp_path, monkeypatch):
    "Where a site loads Slurm in its login profile only, a login shell is asked where it is."
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bash_profile").write_text(f"export PATH=/usr/bin:/bin:/usr/sbin SLURM_CONF={slurm.conf}\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    slurms = {"sbatch", "squeue", "sacct", "sinfo", "scontrol", "scancel", "srun", "sacctmgr", "salloc"}
    for file in Path("/usr/bin").iterdir():
        if file.name not in slurms:
            (tools / file.name).symlink_to(file)
    sshd = start_sshd(tmp_path / "sshd", host="bare", environment={"PATH": tools, "HOME": home})
    monkeypatch.setenv("FSDL_SSH_CONFIG", str(sshd.config))
    monkeypatch.delenv("SLURM_CONF")
    lab = SlurmLab(tmp_path, slurm, host="bare", storage=str(tmp_path / "far"), python=sys.executable)
    try:
        assert lab.wait(lab.submit("hello.py"))["state"] == "succeeded"
        assert lab.target().look().gpus == 32
    finally:
        sshd.stop()


def test_no_slurm_at_all_is_said(tmp_path, monkeypatch):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "bash", "env", "sed", "id", "dirname", "cat"):
        (tools / name).symlink_to(
            subprocess.run(["sh", "-c", f"command -v {name}"], capture_output=True, text=True).stdout.strip()
        )
    lab = SlurmLab(tmp_path, None)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(FsdlError, match="There is no Slurm here|not configured"):
        lab.make("hello.py")
    assert "login node" in lab.target().look().fix
