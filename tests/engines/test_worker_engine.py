"""The worker on machines that a scheduler gave: a real Slurm cluster with fake GPUs; requeue, preemption, a
node that dies, time limits.
"""

import json
import os
import shlex
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from following import STEPS, events, saved_in_life, states, until

from fsdl_dev.core.job import Job, Resources
from fsdl_dev.core.rundir import RunDir, create_run_dir, write_json
from fsdl_dev.core.states import FINAL
from fsdl_dev.engines.slurm.inside import SlurmInside
from fsdl_dev.worker.failures import explain_failure
from fsdl_dev.worker.inside import inside_name

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
PYTHON = shlex.quote(sys.executable)  # in a script: the checkout may lie in a folder with a blank
PATIENCE = 300  # seconds; a test that needs more has failed


class Place:
    """A store and a snapshot in folders of their own; jobs go to Slurm by a plain sbatch script."""

    def __init__(self, folder: Path, slurm):
        self.slurm = slurm
        self.store, self.code, self.jobs = folder / "störe", folder / "snapshöt", []
        self.code.mkdir(parents=True)

    def submit(
        self,
        text: str,
        *,
        nodes: int = 1,
        procs: int = 1,
        gpus: int = 0,
        sbatch: tuple = (),
        time_limit: str = "5",
        **placement,
    ) -> RunDir:
        "A run of its own."
        run = self.write(text, nodes, procs, gpus, **placement)
        options = [
            f"--nodes={nodes}",
            "--ntasks-per-node=1",
            f"--time={time_limit}",
            f"--output={run.worker_log}",
            *([f"--gres=gpu:{gpus}"] if gpus else []),
            *sbatch,
        ]
        self.sbatch(f"exec {PYTHON} -P -m fsdl_dev.worker.worker {shlex.quote(str(run.path))}\n", *options)
        return run

    def sbatch(self, script: str, *options: str) -> None:
        "Give a script to Slurm."
        done = subprocess.run(
            ["sbatch", "--parsable", "--requeue", "--open-mode=append", *options],
            input=f"#!/bin/sh\n{script}",
            capture_output=True,
            text=True,
            cwd=self.store,
            timeout=240,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stderr
        self.jobs.append(done.stdout.strip())

    def write(self, text: str, nodes: int = 1, procs: int = 1, gpus: int = 0, **placement) -> RunDir:
        "A run directory as the Slurm target leaves it on the cluster."
        name = f"script{len(self.jobs)}.py"
        (self.code / name).write_text(textwrap.dedent(text))
        job = Job(
            kind="script",
            name="a test",
            script=name,
            resources=Resources(procs=procs, nodes=nodes, gpus=gpus),
        )
        run = create_run_dir(self.store, job)
        write_json(run.snapshot_file, {"digest": "none", "code": str(self.code)})
        write_json(
            run.path / "placement.json",
            {
                "target": "lab",
                "kind": "slurm",
                "project": str(run.path / "work"),
                "store": str(self.store),
                "grace_seconds": 15.0,
                "allocation": "engine",
                "gang": "engine" if nodes > 1 else None,
                "inside": inside_name(SlurmInside),
                "requeue": "slurm",
                **placement,
            },
        )
        run.set_state(run.writer("launcher"), "queued", "submitted")
        return run

    def until(self, run: RunDir, true) -> None:
        until(
            true,
            lambda: (
                f"{run.last_state()}\n{self.log(run)}\n{run.worker_log.read_text() if run.worker_log.exists() else ''}"
            ),
            PATIENCE,
        )

    def wait(self, run: RunDir) -> str:
        self.until(run, lambda: run.state() in FINAL)
        return run.state()

    def log(self, run: RunDir, rank: int = 0) -> str:
        return run.log(rank).read_text() if run.log(rank).exists() else ""


@pytest.fixture
def place(slurm, tmp_path):
    return Place(tmp_path, slurm)


def test_one_node_has_what_slurm_gave(place):
    run = place.submit(
        """
        import json, os

        print(
            json.dumps(
                {
                    name: os.environ.get(name)
                    for name in (
                        "CUDA_VISIBLE_DEVICES",
                        "SLURM_NTASKS",
                        "SLURM_JOB_NAME",
                        "SLURM_JOB_ID",
                        "FSDL_NODE",
                    )
                }
            )
        )
        print(os.getcwd())
        open("written.txt", "w").write("x")
        """,
        gpus=2,
    )
    assert place.wait(run) == "succeeded", place.log(run)
    seen = json.loads(place.log(run).splitlines()[0])
    node = seen.pop("FSDL_NODE")
    assert seen == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "SLURM_NTASKS": None,
        "SLURM_JOB_NAME": None,
        "SLURM_JOB_ID": place.jobs[0],
    }
    (placed,) = events(run, "placed")
    assert (
        placed["nodes"] == [node]
        and node.startswith("n")
        and placed["slots"] == [0, 1]
        and placed["device"] == "gpu"
    )
    assert (
        place.log(run).splitlines()[1] == str(run.path / "work")
        and (run.path / "work" / "written.txt").exists()
    )
    assert [(event["name"], event["state"]) for event in events(run, "phase")] == [
        ("environment", "start"),
        ("environment", "end"),
        ("training", "start"),
        ("training", "end"),
    ]


def test_a_run_that_was_cancelled_on_its_way_never_begins(place):
    run = place.write("raise SystemExit(3)")
    write_json(run.path / "cancel.json", {"by": "somebody"})
    place.sbatch(
        f"exec {PYTHON} -P -m fsdl_dev.worker.worker {shlex.quote(str(run.path))}\n",
        f"--output={run.worker_log}",
        "--time=5",
    )
    assert (
        place.wait(run) == "cancelled"
        and run.last_state()["reason"] == "cancelled by somebody before it began"
        and not run.log(0).exists()
    )


def test_the_clock_of_the_launching_machine_is_ahead(place):
    run = place.write("print('done')")
    with open(run.events / "launcher.jsonl", "w") as file:
        file.write(
            json.dumps(
                {
                    "t": time.time() + 3600,
                    "kind": "state",
                    "rank": None,
                    "state": "queued",
                    "reason": "submitted",
                }
            )
            + "\n"
        )
    place.sbatch(
        f"exec {PYTHON} -P -m fsdl_dev.worker.worker {shlex.quote(str(run.path))}\n",
        f"--output={run.worker_log}",
        "--time=5",
    )
    assert place.wait(run) == "succeeded" and run.state() == "succeeded", run.worker_log.read_text()


ALL_REDUCE = """
import os, torch

torch.distributed.init_process_group("gloo")
x = torch.tensor([float(os.environ["RANK"])])
torch.distributed.all_reduce(x)
print(
    int(x.item()),
    *(
        os.environ.get(name)
        for name in (
            "RANK",
            "LOCAL_RANK",
            "GROUP_RANK",
            "WORLD_SIZE",
            "FSDL_NODE",
            "CUDA_VISIBLE_DEVICES",
            "SLURM_NTASKS",
        )
    ),
)
import time

time.sleep(1)
"""


def test_two_nodes_are_one_gang(place):
    run = place.submit(ALL_REDUCE, nodes=2, procs=2, gpus=2)
    assert place.wait(run) == "succeeded", place.log(run) + run.worker_log.read_text()
    nodes = events(run, "placed")[0]["nodes"]
    assert [place.log(run, rank).split()[:6] for rank in range(4)] == [
        ["6", str(rank), str(rank % 2), str(rank // 2), "4", nodes[rank // 2]] for rank in range(4)
    ]
    assert all(place.log(run, rank).split()[6:] == ["0,1", "None"] for rank in range(4))
    assert {event["node"] for event in events(run, "resource")} == set(nodes)


def test_an_error_on_one_node_names_the_node(place):
    run = place.submit(
        "import os, time\nif os.environ['RANK'] == '1': raise ValueError('no such column')\ntime.sleep(300)",
        nodes=2,
    )
    assert place.wait(run) == "failed"
    failure = explain_failure(run)
    assert (
        failure.type == "ValueError"
        and failure.rank == 1
        and failure.node == events(run, "placed")[0]["nodes"][1]
    )
    assert failure.text().startswith(f"Rank 1 on {failure.node} failed")


def life(place, run, number: int) -> None:
    "Wait until this life of the run has done some steps."
    place.until(run, lambda: saved_in_life(run, number))


def urgent(place, node: str, *options: str) -> None:
    "A job of higher priority that wants a whole node for two seconds."
    place.jobs.append(
        place.slurm.run(
            "sbatch",
            "--parsable",
            "--qos=high",
            "--gres=gpu:8",
            f"--nodelist={node}",
            "--time=1",
            "--output=/dev/null",
            *options,
            "--wrap",
            "sleep 2",
        ).strip()
    )


@pytest.mark.tier("long", "2-*")
@pytest.mark.parametrize(("nodes", "warned"), [(1, True), (2, True), (2, False)])
def test_preempted_twice_and_goes_on(place, nodes, warned):
    "With a signal to the batch script, and without one: then the steps alone get a SIGTERM."
    run = place.submit(
        STEPS,
        nodes=nodes,
        gpus=8,
        sbatch=(
            *(["--signal=B:USR1@20"] if warned else []),
            "--qos=normal",
            "--nodelist=" + ",".join(["n1", "n2"][:nodes]),
        ),
    )
    for number in (1, 2):
        life(place, run, number)
        urgent(place, "n1")
        place.until(run, lambda: len(events(run, "restart")) == number)
    life(place, run, 3)
    (run.path / "enough").touch()
    assert place.wait(run) == "succeeded", run.worker_log.read_text()
    first, second = events(run, "restart")
    assert (first["count"], second["count"]) == (1, 2) and first["cause"] == second["cause"] == "preempted", (
        run.worker_log.read_text()
    )
    assert "preempted" in first["reason"] and first["from_step"] < second["from_step"]
    log = place.log(run)
    assert [line for line in log.splitlines() if line.startswith("resumed")] == [
        f"resumed from {first['from_step']}",
        f"resumed from {second['from_step']}",
    ]
    between = ["stopping"] if warned else []
    assert states(run) == [
        "queued",
        *["starting", "running", *between, "queued"] * 2,
        "starting",
        "running",
        "succeeded",
    ]
    assert f"goes on from step {second['from_step']}" in "".join(
        event["reason"] for event in events(run, "state")
    )


@pytest.mark.tier("long", "1")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_node_that_dies_costs_a_life(place, victim):
    run = place.submit(STEPS, nodes=2, gpus=8)
    life(place, run, 1)
    node = events(run, "placed")[0]["nodes"][victim]
    place.slurm.kill_node(node)
    life(place, run, 2)
    assert node not in events(run, "placed")[1]["nodes"]
    (run.path / "enough").touch()
    assert place.wait(run) == "succeeded", run.worker_log.read_text()
    (restart,) = events(run, "restart")
    assert restart["cause"] == "node" and restart["from_step"] and not events(run, "failure")
    print(restart["reason"])
    assert "resumed from" in place.log(run)


def test_a_node_set_down_by_its_keeper(place):
    run = place.submit(STEPS, nodes=2, gpus=8)
    life(place, run, 1)
    node = events(run, "placed")[0]["nodes"][1]
    place.slurm.run("scontrol", "update", f"nodename={node}", "state=down", "reason=fan")
    life(place, run, 2)
    (run.path / "enough").touch()
    assert place.wait(run) == "succeeded", run.worker_log.read_text()
    (restart,) = events(run, "restart")
    assert restart["cause"] == "node", restart


def test_the_time_limit_is_passed_once_and_then_it_fails(place):
    run = place.submit(
        STEPS, time_limit="1", grace_seconds=1.0, max_restarts=1, sbatch=("--signal=B:USR1@10",)
    )  # half a minute early: 20 s after the start at the soonest
    place.until(run, lambda: run.state() in FINAL)
    assert run.state() == "failed", run.worker_log.read_text()
    (restart,) = events(run, "restart")
    assert (
        restart["cause"] == "limit"
        and "1 of 1 times after its time limit" in restart["reason"]
        and restart["from_step"]
    )
    failure = explain_failure(run)
    assert failure.type == "TimeLimit" and failure.checkpoint and "--resume" in failure.command
    print(failure.text())


@pytest.mark.tier("long")
def test_more_time_is_noticed(place):
    "The worker would stop half-way through two minutes; the administrator gives the job an hour."
    run = place.submit(STEPS, time_limit="2", grace_seconds=50.0)
    life(place, run, 1)
    place.slurm.run("scontrol", "update", f"jobid={place.jobs[0]}", "timelimit=60")
    time.sleep(max(0.0, 66 - (time.time() - events(run, "placed")[0]["t"])))
    assert run.state() == "running"
    (run.path / "enough").touch()
    assert place.wait(run) == "succeeded" and not events(run, "restart")


def test_without_a_signal_the_worker_acts_before_the_limit(place):
    run = place.submit(STEPS, time_limit="1", grace_seconds=20.0, requeue=None)
    assert place.wait(run) == "failed"
    assert "saved at" in place.log(run) and explain_failure(run).type == "TimeLimit"


@pytest.mark.tier("long", "*-2")
@pytest.mark.tier("smoke", "True-1")
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("told", [True, False])
def test_scancel_is_a_cancel(place, nodes, told):
    "With cancel.json beside it, as `fsdl cancel` leaves it, and bare."
    run = place.submit(STEPS, nodes=nodes)
    life(place, run, 1)
    if told:
        write_json(run.path / "cancel.json", {"by": "somebody"})
    place.slurm.run("scancel", place.jobs[0])
    assert place.wait(run) == "cancelled", run.worker_log.read_text()
    assert run.last_state()["reason"] == (
        "cancelled by somebody" if told else "cancelled by scancel"
    ) and not events(run, "failure")
    assert not events(run, "restart")


def test_one_task_of_an_array_is_queued_again(place):
    "The first task has the number of the whole array: only its own life may end."
    runs = [place.write(STEPS) for _ in range(2)]
    names = " ".join(f"'{run.path}'" for run in runs)
    place.sbatch(
        f'set -- {names}\nshift $SLURM_ARRAY_TASK_ID\nexec {PYTHON} -P -m fsdl_dev.worker.worker "$1"'
        ' >> "$1/logs/worker.log" 2>&1\n',
        "--array=0-1",
        "--time=5",
        "--output=/dev/null",
    )
    for run in runs:
        life(place, run, 1)
    for number, run in reversed(list(enumerate(runs))):
        place.slurm.run("scancel", "--batch", "--signal=USR1", f"{place.jobs[0]}_{number}")
        place.until(run, lambda run=run: len(events(run, "restart")) == 1)
        life(place, run, 2)
        assert [len(events(other, "placed")) for other in runs] == ([1, 2] if number else [2, 2])
    for run in runs:
        (run.path / "enough").touch()
        assert place.wait(run) == "succeeded" and "resumed from" in place.log(run)


def test_a_bug_is_not_started_again(place):
    run = place.submit("import time\ntime.sleep(0.5)\n1 / 0")
    assert (
        place.wait(run) == "failed"
        and not events(run, "restart")
        and explain_failure(run).type == "ZeroDivisionError"
    )
    place.slurm.run("scontrol", "requeue", place.jobs[0])
    place.until(run, lambda: "has ended already" in run.worker_log.read_text())
    assert run.state() == "failed"


LIGHTNING = """
import os, signal, sys
import pytorch_lightning as pl, torch
from torch.utils.data import DataLoader, TensorDataset

if sys.argv[1:] == ["ours"]:
    from fsdl_dev.train.trainer import Trainer
else:
    from pytorch_lightning import Trainer


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_train_start(self):
        print(
            "starts at",
            self.trainer.global_step,
            type(self.trainer._accelerator_connector.cluster_environment).__name__,
            type(signal.getsignal(signal.SIGUSR1)).__name__ != '_HandlersCompose',
            flush=True,
        )


trainer = Trainer(
    max_steps=4,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    accelerator="cpu",
    devices=1,
    default_root_dir=FOLDER,
)
if os.environ.get("PLANT"):
    trainer.fit(Net(), DataLoader(TensorDataset(torch.randn(8, 4)), 4))
    trainer.save_checkpoint(FOLDER + "/hpc_ckpt_1.ckpt")
else:
    trainer.fit(Net(), DataLoader(TensorDataset(torch.randn(8, 4)), 4))
"""


@pytest.mark.tier("long", "plain")
@pytest.mark.parametrize("whose", ["plain", "ours"])
def test_lightning_does_not_take_another_jobs_checkpoint(place, tmp_path, whose):
    """A hpc_ckpt file that another job left in a shared folder is what Lightning resumes from, where it
    believes to be Slurm's own task.
    """
    shared = tmp_path / "shared"
    shared.mkdir()
    script = f"FOLDER = {str(shared)!r}\nimport sys; sys.argv[1:] = [{whose!r}]\n" + LIGHTNING
    (tmp_path / "plant.py").write_text(script)
    subprocess.run(
        [sys.executable, str(tmp_path / "plant.py")],
        env={**os.environ, "PLANT": "1", "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        timeout=600,
    )
    assert (shared / "hpc_ckpt_1.ckpt").exists()
    trap = subprocess.run(
        ["srun", "--ntasks=1", f"--export=ALL,PYTHONPATH={ROOT}", sys.executable, str(tmp_path / "plant.py")],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    ).stdout
    if whose == "plain":
        assert "starts at" not in trap or "starts at 4" in trap, (
            "Lightning alone walks into it: else this test shows nothing"
        )
    run = place.submit(script)
    assert place.wait(run) == "succeeded", place.log(run)
    line = next(line for line in place.log(run).splitlines() if line.startswith("starts at"))
    assert line == "starts at 0 LightningEnvironment True", place.log(run)
