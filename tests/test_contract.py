"""The contract of targets on this machine. Those of the other targets are in their own files."""
import os
import signal

import pytest

from fsdl_dev.launch.local import worker_of
from fsdl_dev.targets.contract import EngineContract


@pytest.mark.slow
class TestThisMachine(EngineContract):
    name, cannot = "test", frozenset({"gang", "requeue"})

    def fields(self):
        return {"kind": "test"}

    def kill_worker(self, run):
        os.kill(worker_of(run)["pid"], signal.SIGKILL)
