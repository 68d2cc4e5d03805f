"""The capacity of a real Slurm cluster, and the limit of idleness on it: fake GPUs, real accounting."""

import json
import os
import subprocess
import sys

import pytest
from slurm_lab import SlurmLab, sbatch

from fsdl_dev.cli.team.capacity import capacity_answer
from fsdl_dev.core.rundir import RunDir
from fsdl_dev.engines import capacity
from fsdl_dev.records.run import Run

pytestmark = pytest.mark.slow
FSDL = [sys.executable, "-c", "import sys; from fsdl_dev.cli.main import main; sys.argv[0] = 'fsdl'; main()"]
BUSY = "while true; do :; done"
LAZY = """
    import os, pathlib, signal, sys, time
    rank = int(os.environ["RANK"])
    def save(*ignored):
        pathlib.Path(os.environ["FSDL_RUN_DIR"], "checkpoints", f"saved-{rank}.txt").write_text("whole")
        sys.exit(143)
    signal.signal(signal.SIGTERM, save)
    step = 0
    while True:
        if rank == 3:
            time.sleep(1)
        else:
            sum(number * number for number in range(300_000))
            step += 1
            if not rank:
                print('{"step": %d, "loss": 1.0}' % step, flush=True)
"""


@pytest.fixture
def lab(slurm, tmp_path):
    lab = SlurmLab(tmp_path, slurm)
    yield lab
    lab.stop_all()


def running(slurm, *jobs: str) -> bool:
    return all(slurm.state(job) == "RUNNING" for job in jobs)


def test_the_page_of_a_cluster(lab, slurm, monkeypatch):
    """Who holds GPUs and does nothing, which free GPUs no waiting job can use, what is out of service, who pays."""
    monkeypatch.setattr(capacity, "_YOUNG", 4.0)
    slurm.run("scontrol", "update", "nodename=n4", "state=drain", "reason=ECC errors on GPU 3")
    works = sbatch("-A", "lab", "--gres=gpu:4", "-w", "n1", script=BUSY)
    forgotten = sbatch("-A", "small", "--gres=gpu:4", "-w", "n2", "--job-name=jupyter-lab")
    held = ("salloc", "--no-shell", "-A", "lab", "--gres=gpu:2", "-w", "n3", "-J", "shell")
    slurm.run(*held)
    slurm.wait(lambda: running(slurm, works, forgotten), "the jobs to run")
    asks = sbatch("-A", "lab", "--gres=gpu:8")
    slurm.wait(
        lambda: "Resources" in slurm.run("squeue", "-h", "-j", asks, "-o", "%r"), "the job to wait for room"
    )

    def seen():
        page = capacity_answer("cluster", 1.0, project=lab.project)
        known = {job.job: job.cpu_seconds for job in page.capacity.held}
        return page if len(page.idle) == 2 and (known.get(works) or 0) > 1 else None

    page = slurm.wait(seen, "the use of processors to be known")
    found = page.capacity
    assert found.counts() == {"allocated": 10, "idle": 14, "down": 8}
    idle = {one.job.name: one for one in page.idle}
    assert idle.keys() == {"jupyter-lab", "shell"} and all(one.job.interactive for one in idle.values())
    assert (idle["jupyter-lab"].job.account, idle["jupyter-lab"].job.owner) == ("small", "root")
    stranded = {one.machine: one.gpus for one in capacity.find_stranded(found.machines, found.waiting)}
    assert stranded == {"n1": 4, "n2": 4, "n3": 6}
    (train,) = [one for one in capacity.pool_waits(found.used, found.waiting, found.t) if one.pool == "train"]
    assert train.jobs >= 3 and train.waiting == 1
    teams = {row.account: row for row in capacity.team_use(found.used, page.since, found.t)}
    assert teams["small"].gpu_hours > 0 and teams["lab"].billing > 0, "the cluster bills a unit for each GPU"
    assert any(outage.machine == "n4" and "ECC" in outage.reason for outage in found.outages), found.outages
    text = page.to_text()
    for words in ("ECC errors on GPU 3", "jupyter-lab", "Of 14 free GPUs, 14 are stranded.", "GRES/gpu=1.0"):
        assert words in text, text
    assert not found.unknown, found.unknown


def test_the_command_keeps_a_history_and_writes_a_page(lab, slurm):
    environment = {**os.environ, "FSDL_STORE": str(lab.project.store)}
    for _ in range(2):
        words = [*FSDL, "capacity", "--on", "cluster", "--days", "2", "--out", "capacity.html", "--json"]
        done = subprocess.run(
            words, cwd=lab.folder, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["looks"] == 2 and found["gpus"] == 32 and found["target"] == "cluster"
    page = (lab.folder / "capacity.html").read_text()
    assert "<script" not in page and page.count("<svg") >= 1 and "Capacity of cluster (slurm)" in page
    quiet = subprocess.run(
        [*FSDL, "capacity", "--on", "cluster", "--quiet"], cwd=lab.folder, env=environment, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_a_rank_that_idles_on_the_second_node_ends_the_run(lab, slurm):
    """Four ranks on two nodes: the last one does nothing, is named with its node, and the others save."""
    lab.write("lazy.py", LAZY)
    words = [
        "launch",
        "lazy.py",
        "--on",
        "cluster",
        "--nodes",
        "2",
        "--procs",
        "2",
        "--gpus",
        "0",
        "--max-idle",
        "20s",
    ]
    done = subprocess.run(
        [*FSDL, *words, "--json"], cwd=lab.folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 80, f"{done.stdout}\n{done.stderr}"
    run = RunDir(lab.project.store / "runs" / json.loads(done.stdout)["id"])
    reason = run.last_state()["reason"]
    nodes = Run(run).refresh().machines.nodes
    assert (
        f"rank 3 on {nodes[1]} did nothing for 20 s" in reason and "while the others made steps" in reason
    ), reason
    assert {path.name for path in run.checkpoints.glob("saved-*")} >= {
        "saved-0.txt",
        "saved-1.txt",
        "saved-2.txt",
    }
