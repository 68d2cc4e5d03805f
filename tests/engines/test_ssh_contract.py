"""The contract of targets by SSH: one host, and two hosts with one rendezvous."""

import sys

import pytest
from hosts import machines, why_no_namespaces

from fsdl_dev.engines.contract import EngineContract

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces() or "-"),
]


@pytest.fixture(scope="module", autouse=True)
def net(tmp_path_factory):
    with (
        machines(tmp_path_factory.mktemp("net"), ["gpu1", "gpu2"]) as net,
        pytest.MonkeyPatch.context() as patch,
    ):
        for key, value in net.environment().items():
            patch.setenv(key, value)
        TestOneHost.net = TestTwoHosts.net = net
        yield net


class SshContract(EngineContract):
    name, net, seconds = "box", None, 300.0

    def kill_worker(self, run):
        pid = self.net["gpu1"].ssh(f"cat ~/.fsdl_dev/runs/{run.id}/.started/who").stdout.split()[0]
        self.net["gpu1"].ssh(f"kill -9 {pid}")


@pytest.mark.tier("contract", "test_killed_worker")
@pytest.mark.tier("smoke", "test_launch_and_non_ascii_and_fetch", "test_killed_worker")
class TestOneHost(SshContract):
    cannot = frozenset({"gang", "requeue"})

    def fields(self):
        return {"kind": "ssh", "host": "gpu1", "python": sys.executable, "slots": 8}


@pytest.mark.tier("contract", "test_killed_worker", "test_gang_of_two_nodes")
class TestTwoHosts(SshContract):
    cannot, crowd = frozenset({"requeue"}), 20

    def fields(self):
        return {"kind": "ssh", "hosts": ["gpu1", "gpu2"], "python": sys.executable, "slots": 8}

    def kill_worker(self, run):
        for name in ("gpu1", "gpu2"):  # it went where there was more room
            self.net[name].ssh(
                f"read -r pid rest <~/.fsdl_dev/runs/{run.id}/.started/who && kill -9 $pid; true"
            )
