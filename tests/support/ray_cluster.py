"""A real Ray cluster on this machine: a head and workers as separate nodes with addresses 127.0.0.11, .12, .13
and GPUs that are only counted.

with RayCluster(folder) as cluster: cluster.address # of the Jobs REST API cluster.kill_node("w1") # kill -9, as
if the machine had lost power

Each node is one `ray start --block` in a session of its own. What it starts carries a mark in its environment,
and nothing else is ever signalled. From a shell: python tests/support/ray_cluster.py FOLDER starts one, prints its
address, and ends it with Ctrl-C.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil
from ports import free_ports

# `ray start` gives up after 30 s unless RAY_raylet_start_wait_time_s says more, and Ray's agent after 15 s.
START_SECONDS, ATTEMPTS = 100, 5
MARK = "TEST_RAY_NODE"  # in the environment of every process of a node


def ray_missing() -> str:
    """Why no cluster can be started here; "" where one can."""
    return (
        ""
        if Path(sys.executable).with_name("ray").exists() and sys.platform == "linux"
        else "no ray[default] in this environment"
    )


class RayCluster:
    """A head without GPUs and workers with some."""

    def __init__(self, workers: int = 2, gpus: int = 2, cpus: int = 4, environment: dict | None = None):
        self.workers, self.gpus, self.cpus = workers, gpus, cpus
        self.nodes: dict[str, subprocess.Popen] = {}
        self.ports: dict[str, int] = {}  # of the dashboard's agents
        self.folder = Path(
            tempfile.mkdtemp(prefix="fray", dir="/tmp")
        )  # short: Ray's socket names have 107 bytes
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "FSDL_", "CUDA_"))},
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_DISABLE_IMPORT_WARNING": "1",
            "RAY_enable_metrics_collection": "0", "RAY_worker_niceness": "0",  # else jobs starve beside other tests
            "RAY_health_check_period_ms": "2000", "RAY_health_check_failure_threshold": "12",
            "RAY_health_check_timeout_ms": "10000",
            "RAY_memory_monitor_refresh_ms": "0", "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "240",
            "RAY_agent_register_timeout_ms": "120000", "RAY_raylet_start_wait_time_s": str(START_SECONDS),
            "PYTHONDONTWRITEBYTECODE": "",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **(environment or {}),
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
        """Start the head, then the workers one after the other; returns when the Jobs API sees them all."""
        for attempt in range(ATTEMPTS):
            self.port, self.dashboard, client = free_ports(3)
            self.address = f"http://127.0.0.1:{self.dashboard}"
            self._node(
                "head",
                "127.0.0.11",
                [
                    "--head",
                    f"--port={self.port}",
                    "--include-dashboard=true",
                    "--dashboard-host=127.0.0.1",
                    f"--dashboard-port={self.dashboard}",
                    f"--ray-client-server-port={client}",
                    "--num-cpus=2",
                    "--num-gpus=0",
                ],
            )
            if self._came("head", set(), last=attempt == ATTEMPTS - 1):
                break
        for number in range(1, self.workers + 1):
            self.start_node(f"w{number}")

    def start_node(self, name: str) -> None:
        """Start a worker, or start it again; returns when the head sees it."""
        for attempt in range(ATTEMPTS):
            before = {
                node_id for node_id, *_ in self._known()
            }  # a node that was killed may still be called alive for some seconds
            self._node(
                name,
                self._address(name),
                [f"--address=127.0.0.11:{self.port}", f"--num-cpus={self.cpus}", f"--num-gpus={self.gpus}"],
            )
            if self._came(name, before, last=attempt == ATTEMPTS - 1):
                return

    def _address(self, name: str) -> str:
        return "127.0.0.11" if name == "head" else f"127.0.0.{int(name[1:]) + 11}"

    def _came(self, name: str, before: set[str], last: bool) -> bool:
        """Wait until the head sees a node that was not there before. False where it did not come."""
        node, until = self.nodes[name], time.monotonic() + START_SECONDS
        while not any(
            node_id not in before and address == self._address(name) and alive
            for node_id, address, alive in self._known()
        ):
            if node.poll() is not None or time.monotonic() > until:
                self.kill_node(name)
                if last:
                    ray = self.folder / "session_latest" / "logs"
                    paths = [*self.folder.glob("*.log"), *ray.glob("raylet*.out"), *ray.glob("*agent*.log")]
                    logs = "\n".join(
                        f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in paths
                    )
                    raise RuntimeError(f"Ray: {name} did not come\n{logs}")
                return False
            time.sleep(0.2)
        return True

    def _node(self, name: str, address: str, options: list[str]) -> None:
        agent, grpc, metrics, runtime = free_ports(4)
        self.ports[name] = agent
        command = [
            str(Path(sys.executable).with_name("ray")),
            "start",
            "--block",
            "--disable-usage-stats",
            f"--node-ip-address={address}",
            "--object-store-memory=78643200",
            f"--dashboard-agent-listen-port={agent}",
            f"--dashboard-agent-grpc-port={grpc}",
            f"--metrics-export-port={metrics}",
            f"--runtime-env-agent-port={runtime}",
            f"--temp-dir={self.folder}",
            "--include-log-monitor=false",
            *options,
        ]
        with open(self.folder / f"{name}.log", "ab") as log:
            self.nodes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self.environment | {MARK: f"{self.folder}/{name}"},
            )

    def alive(self) -> list[str]:
        """The addresses of the nodes that the head believes to be alive."""
        return sorted(address for _, address, alive in self._known() if alive)

    def _known(self) -> list[tuple[str, str, bool]]:
        """Every node that the head has seen: its id, its address, whether it is believed to be alive."""
        try:
            token = self.environment.get("RAY_AUTH_TOKEN")
            asked = urllib.request.Request(
                f"{self.address}/nodes?view=summary",
                headers={"Authorization": f"Bearer {token}"} if token else {},
            )
            with urllib.request.urlopen(asked, timeout=30) as answer:
                nodes = json.load(answer)["data"]["summary"]
        except (OSError, KeyError, ValueError):
            return []
        return [
            (raylet.get("nodeId", ""), raylet.get("nodeManagerAddress", ""), raylet.get("state") == "ALIVE")
            for raylet in (node["raylet"] for node in nodes)
        ]

    def kill_node(self, name: str) -> None:
        """End every process of a node at once, as a power cut would."""
        node = self.nodes.pop(name)
        for _ in range(20):
            family = _family(f"{self.folder}/{name}")
            for process in family:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if not family:
                break
            psutil.wait_procs(family, timeout=1)
        node.wait(120)

    def stop(self) -> None:
        """End every node, workers first, and remove the folder."""
        for name in reversed(list(self.nodes)):
            self.kill_node(name)
        shutil.rmtree(self.folder, ignore_errors=True)


def _family(mark: str) -> list[psutil.Process]:
    """Every process of a node, and of the runs on it: they have the node's mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if f"{MARK}={mark}".encode() in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.append(process)
    return found


if __name__ == "__main__":
    with RayCluster() as running:
        print(running.address, running.folder, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            while True:
                time.sleep(1)
