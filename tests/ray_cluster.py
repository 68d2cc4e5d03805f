"""A real Ray cluster on this machine: a head and workers as separate nodes with addresses 127.0.0.11, .12, .13 and GPUs that are only counted.

    with RayCluster(folder) as cluster:
        cluster.address            # of the Jobs REST API
        cluster.kill_node("w1")    # kill -9, as if the machine had lost power

Each node is one `ray start --block` in a session of its own, found again by its process id, and nothing else is ever signalled.
From a shell:  python tests/ray_cluster.py FOLDER   starts one, prints its address, and ends it with Ctrl-C.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

START_SECONDS = 90


def ray_missing() -> str:
    """Why no cluster can be started here; "" where one can."""
    return "" if Path(sys.executable).with_name("ray").exists() and sys.platform == "linux" else "no ray[default] in this environment"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, outside the range that the system gives to outgoing connections where there is room."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class RayCluster:
    """A head without GPUs and workers with some."""

    def __init__(self, workers: int = 2, gpus: int = 2, cpus: int = 4, environment: dict | None = None):
        self.workers, self.gpus, self.cpus = workers, gpus, cpus
        self.nodes: dict[str, subprocess.Popen] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="fray", dir="/tmp"))  # short: Ray's socket names have 107 bytes
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "FSDL_", "CUDA_"))},
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_enable_metrics_collection": "0",
            "RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "5", "RAY_health_check_timeout_ms": "5000",
            "RAY_memory_monitor_refresh_ms": "0", "PYTHONDONTWRITEBYTECODE": "", **(environment or {}),
        }  # fmt: skip

    def __enter__(self) -> "RayCluster":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *problem) -> None:
        self.stop()

    def start(self) -> None:
        """Start the head, then the workers side by side; returns when the Jobs API sees them all."""
        self.port, self.dashboard, client = free_ports(3)
        self.address = f"http://127.0.0.1:{self.dashboard}"
        self._node("head", "127.0.0.11", ["--head", f"--port={self.port}", "--include-dashboard=true", "--dashboard-host=127.0.0.1",
                                         f"--dashboard-port={self.dashboard}", f"--ray-client-server-port={client}", "--num-cpus=2", "--num-gpus=0"])
        self._wait(lambda: self._answers(), "the Jobs API does not answer")
        for number in range(1, self.workers + 1):
            self.start_node(f"w{number}")
        self._wait(lambda: len(self.alive()) == self.workers + 1, "not all nodes came")

    def start_node(self, name: str) -> None:
        """Start a worker, or start it again."""
        self._node(name, f"127.0.0.{int(name[1:]) + 11}",
                   [f"--address=127.0.0.11:{self.port}", f"--num-cpus={self.cpus}", f"--num-gpus={self.gpus}"])

    def _node(self, name: str, address: str, options: list[str]) -> None:
        agent, grpc, metrics, runtime = free_ports(4)
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats", f"--node-ip-address={address}",
                   "--object-store-memory=78643200", f"--dashboard-agent-listen-port={agent}", f"--dashboard-agent-grpc-port={grpc}",
                   f"--metrics-export-port={metrics}", f"--runtime-env-agent-port={runtime}", f"--temp-dir={self.folder}",
                   "--include-log-monitor=false", *options]
        with open(self.folder / f"{name}.log", "ab") as log:
            self.nodes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=self.environment)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{self.address}/api/version", timeout=5).status == 200
        return False

    def _wait(self, ready, what: str) -> None:
        until = time.monotonic() + START_SECONDS
        while not ready():
            gone = [name for name, node in self.nodes.items() if node.poll() is not None]
            if gone or time.monotonic() > until:
                logs = "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in self.folder.glob("*.log"))
                raise RuntimeError(f"Ray: {what}; ended: {gone}\n{logs}")
            time.sleep(0.1)

    def alive(self) -> list[str]:
        """The addresses of the nodes that the head believes to be alive."""
        import json

        try:
            with urllib.request.urlopen(f"{self.address}/nodes?view=summary", timeout=10) as answer:
                nodes = json.load(answer)["data"]["summary"]
        except (OSError, KeyError, ValueError):
            return []
        return sorted(node["raylet"]["nodeManagerAddress"] for node in nodes if node["raylet"].get("state") == "ALIVE")

    def kill_node(self, name: str) -> None:
        """End every process of a node at once, as a power cut would."""
        node = self.nodes.pop(name)
        for process in _family(node.pid):
            with contextlib.suppress(psutil.Error):
                process.kill()
        node.wait(30)

    def stop(self) -> None:
        """End every node, workers first, and remove the folder."""
        for node in reversed(self.nodes.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(node.pid, signal.SIGTERM)
        families = [process for node in self.nodes.values() for process in _family(node.pid)]
        _, left = psutil.wait_procs(families, timeout=10)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=5)
        self.nodes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def _family(pid: int) -> list[psutil.Process]:
    """A process and everything below it."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


if __name__ == "__main__":
    with RayCluster() as running:
        print(running.address, running.folder, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            while True:
                time.sleep(1)
