"""The contract of targets on this machine. Those of the other targets are in their own files."""

import os
import signal
from unittest import SkipTest

import pytest

from fsdl_dev.engines.contract import EngineContract, contract_project
from fsdl_dev.worker.observe import worker_of


def test_a_project_of_the_contract_has_every_field(tmp_path):
    """Also those that are tables."""
    fields = {
        "kind": "test",
        "env": {"A B": "1", "ü": "größe"},
        "mounts": ["/data:/mnt:ro"],
        "slots": 2,
        "managed": True,
    }
    assert contract_project(tmp_path, "x", fields).config["targets"]["x"] == fields


def test_what_cannot_be_is_skipped_and_not_passed(tmp_path):
    """A report of the contract says what was not tried."""
    with pytest.raises(SkipTest, match="does not start a run again"):
        TestThisMachine().test_requeue_keeps_the_run(tmp_path)


@pytest.mark.tier("smoke")
@pytest.mark.slow
class TestThisMachine(EngineContract):
    name, cannot, seconds = "test", frozenset({"gang", "requeue"}), 300.0

    def fields(self):
        return {"kind": "test"}

    def kill_worker(self, run):
        os.kill(worker_of(run).pid, signal.SIGKILL)
