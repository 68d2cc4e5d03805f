"""A real Slurm cluster for tests: four nodes with fake GPUs, accounting, QOS and preemption, all on loopback
and all ended by process id.

`slurm_cluster` is one cluster for the whole session; `slurm` gives a test its commands and leaves the queue
empty behind it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("slurm_cluster.sh")
NEEDS = ("slurmctld", "slurmd", "slurmdbd", "sbatch", "munged", "mariadbd")
PATIENCE = 300  # seconds
ACCOUNTS = """\
add account lab
add account small
add qos high Priority=1000 Preempt=normal
add qos short MaxWall=5 MaxJobsPerUser=1
modify qos normal set Priority=100 GraceTime=20
add user root account=lab qos=normal,high,short DefaultQOS=normal
add user root account=small qos=normal DefaultQOS=normal
modify user root set DefaultAccount=lab
modify account small set GrpTRES=gres/gpu=4
"""  # high preempts normal, whose jobs get 20 s to save; the account small has four GPUs


def missing() -> str:
    """Why there can be no cluster here; empty where there can."""
    if sys.platform != "linux" or os.geteuid():
        return "needs Linux and root: the daemons start jobs for others"
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    absent = [name for name in NEEDS if not shutil.which(name, path=path)]
    return f"{', '.join(absent)} not installed: bash tests/support/slurm_cluster.sh install" if absent else ""


class SlurmCluster:
    """The cluster's commands, as its users and its administrator have them."""

    def __init__(self, base: Path, port: int, nodes: int = 4, gpus: int = 8):
        self.base, self.nodes = base, nodes
        self.env = {
            "SLURM_BASE": str(base),
            "SLURM_PORT0": str(port),
            "SLURM_NODES": str(nodes),
            "SLURM_GPUS": str(gpus),
        }
        self.conf = base / "etc" / "slurm.conf"

    def script(self, *words: str, check: bool = True) -> str:
        """One verb of slurm_cluster.sh."""
        # into files: a daemon that starts would hold a pipe open for ever
        with tempfile.TemporaryFile("w+") as out:
            done = subprocess.run(
                ["bash", str(SCRIPT), *words],
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                timeout=600,
            )
            out.seek(0)
            text = out.read()
        assert not check or done.returncode == 0, text[-3000:]
        return text

    def run(self, *words: str, check: bool = True) -> str:
        """A Slurm command's output."""
        done = subprocess.run(
            words,
            env={**os.environ, "SLURM_CONF": str(self.conf)},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert not check or done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def up(self) -> None:
        self.script("up")
        if "small" not in self.run("sacctmgr", "-nP", "show", "account", "format=account"):
            for line in ACCOUNTS.splitlines():
                self.run("sacctmgr", "-i", "-Q", *line.split())

    def purge(self) -> None:
        self.script("purge", check=False)

    def kill_node(self, node: str) -> None:
        """The node's power fails: its daemon and every process of its jobs end at once."""
        self.script("kill-node", node)

    def saved(self, job: str) -> Path:
        """The file with the controller's memory of its jobs, written just now.

        By itself it keeps no record of a start by the backfill scheduler for minutes, and forgets it when it is
        killed.
        """
        memory = self.base / "ctld" / "job_state"
        before = memory.stat().st_mtime_ns if memory.exists() else 0
        self.run("scontrol", "update", f"jobid={job}", "admincomment=saved")
        self.wait(
            lambda: memory.exists() and memory.stat().st_mtime_ns > before, "the controller to save its state"
        )
        return memory

    def heal(self) -> None:
        """Every daemon up, every node in service, nothing queued, no reservation."""
        self.run("scancel", "-Q", "--user=root", check=False)
        if "is UP" not in self.run("scontrol", "ping", check=False):
            self.script("controller", "start")
        for number in range(1, self.nodes + 1):
            pid = self.base / "run" / f"slurmd.n{number}.pid"
            if not pid.exists() or not Path("/proc", pid.read_text().strip() or "0").exists():
                self.script("start-node", f"n{number}")
        for line in self.run("scontrol", "-o", "show", "reservation", check=False).splitlines():
            if line.startswith("ReservationName="):
                self.run("scontrol", "delete", line.split()[0], check=False)
        self.run("scancel", "-Q", "--user=root", check=False)
        self.wait(lambda: not self.run("squeue", "-h", check=False).strip(), "an empty queue")
        for line in self.run("sinfo", "-h", "-N", "-p", "train", "-o", "%N %T").splitlines():
            name, state = line.split()
            if state not in ("idle", "mixed", "allocated"):
                self.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)
        self.wait(
            lambda: self.run("sinfo", "-h", "-N", "-p", "train", "-o", "%T").split() == ["idle"] * self.nodes,
            "idle nodes",
        )

    def wait(self, condition, what: str, seconds: float = PATIENCE):
        """What the condition gave, once it is true."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if value := condition():
                return value
            time.sleep(0.05)
        raise AssertionError(
            f"waited {seconds} s for"
            f" {what}\n{self.run('squeue', check=False)}\n{self.run('sinfo', '-N', check=False)}"
        )

    def state(self, job: str) -> str:
        """One job's state as squeue says it; empty for a job that is gone."""
        with suppress(AssertionError):
            return self.run("squeue", "-h", "-j", job, "-o", "%T").strip()
        return ""


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """One cluster for the session, on ports and in a folder of its own."""
    if why := missing():
        pytest.skip(why)
    base = Path(tempfile.mkdtemp(prefix="fsdl-slurm-"))
    base.chmod(0o755)
    cluster = SlurmCluster(base, free_ports())
    # ends the daemons where this process is killed: the pipe closes without a line
    guard = subprocess.Popen(
        ["sh", "-c", 'read -r line || exec bash "$0" purge', str(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **cluster.env},
        start_new_session=True,
    )
    try:
        cluster.up()
        yield cluster
    finally:
        guard.communicate(b"done\n")
        cluster.purge()


def free_ports() -> int:
    """A port such that it, the three above it and those of the nodes were free a moment ago.

    Below those that outgoing connections take: they are bound late, and again after a restart.
    """
    import random
    import socket

    for _ in range(50):
        first = random.SystemRandom().randrange(17_000, 32_000)
        with suppress(OSError):
            for port in (*range(first, first + 4), *range(first + 101, first + 105)):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
    raise RuntimeError("no free ports")


@pytest.fixture
def slurm(slurm_cluster, monkeypatch) -> Iterator[SlurmCluster]:
    """The cluster for one test: its commands are on the way, and it is whole again afterwards."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.conf))
    yield slurm_cluster
    slurm_cluster.heal()
