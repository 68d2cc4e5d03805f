"""A machine that does not answer: each look says so, and the next process knows since when."""

import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fsdl_dev
from fsdl_dev.cards.card import card_text, make_card
from fsdl_dev.core.event_kinds import State
from fsdl_dev.core.job import Job, LaunchRecord
from fsdl_dev.core.rundir import RunDir, create_run_dir
from fsdl_dev.core.settings import find_project, open_store
from fsdl_dev.engines import contact, target
from fsdl_dev.engines.remote import follow
from fsdl_dev.records import place
from fsdl_dev.records.run import Run


@pytest.fixture
def quick(monkeypatch):
    "Looks wait for one second, and soon after for half of it."
    for module in (contact, follow):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(contact, "_AGAIN_SECONDS", 0.5)


@pytest.fixture
def another_process(monkeypatch):
    "Forget what this process has heard from targets, as another one would not know it."

    def forget() -> None:
        monkeypatch.setattr(target, "_made", {})
        monkeypatch.setattr(place, "_answers", {})

    return forget


def running(folder: Path, table: str) -> RunDir:
    "A project with a target `lab`, and a run that goes on there by all that is known here."
    folder.mkdir()
    (folder / "pyproject.toml").write_text(table)
    store = open_store(find_project(folder))
    run = create_run_dir(
        store,
        Job("script", "train", script="train.py"),
        LaunchRecord(target="lab", project=str(folder)),
    )
    (run.path / "placement.json").write_text(
        json.dumps(
            {
                "kind": "ssh",
                "target": "lab",
                "store": "/var/tmp/far",
                "runtime": "/var/tmp/far/runtimes/1.zip",
            }
        )
    )
    (run.path / "engine.json").write_text(json.dumps({"id": run.id, "kind": "ssh", "name": "lab"}))
    run.writer("worker").write(State(state="running", reason="1 process started"))
    return run


@pytest.fixture
def faulty_port():
    "A port of this machine whose server accepts and says nothing (`silent`), gets no packets (`dropped`), or is gone."
    open_sockets = []

    def port(fault: str) -> int:
        server = socket.socket()
        open_sockets.append(server)
        server.bind(("127.0.0.1", 0))
        if fault == "silent":
            server.listen(50)
        if fault == "dropped":  # the kernel drops the packets to a full queue
            server.listen(0)
            for _ in range(3):
                client = socket.socket()
                client.setblocking(False)
                client.connect_ex(server.getsockname())
                open_sockets.append(client)
        return server.getsockname()[1]  # bound and not listening: refused

    yield port
    for one in open_sockets:
        one.close()


SILENT = "gave no answer within 1 s"


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("silent", SILENT),
        ("dropped", SILENT),
        ("closed", f"no SSH server answers there|{SILENT}"),
        ("renamed", f"no host named|cannot be looked up|{SILENT}"),
    ],
)
def test_each_look_says_since_when(fault, why, faulty_port, quick, another_process, tmp_path, monkeypatch):
    "One look knows it and keeps it; the state stays what it was; the next look knows since when."
    name = "no-such-host.invalid" if fault == "renamed" else "127.0.0.1"
    port = 22 if fault == "renamed" else faulty_port(fault)
    config = tmp_path / "ssh_config"
    config.write_text(f"Host box\n  HostName {name}\n  Port {port}\n")
    monkeypatch.setenv("FSDL_SSH_CONFIG", str(config))
    folder = tmp_path / "project"
    monkeypatch.delenv("FSDL_STORE", raising=False)
    run = running(
        folder, '[tool.fsdl_dev.targets.lab]\nkind = "ssh"\nhost = "box"\n'
    )  # its home is asked, too

    began = time.time()
    [row] = table = fsdl_dev.runs(folder=folder)
    assert row.state == "running" and began - 1 <= row.not_reached.since <= time.time(), row
    assert "running, not reached" in table.to_text() and "lab: not reached since" in table.note
    assert re.search(why, row.not_reached.text), row.not_reached

    another_process()
    again = Run(run)
    told, card = again.facts.to_dict(), card_text(make_card(again), 200)
    assert told["state"] == "running" and told["not_reached"]["since"] == row.not_reached.since
    assert re.search(why, told["not_reached"]["text"]) and "⚠ not reached since" in card
    assert "not reached since" in again.status_line()
    another_process()
    [told] = fsdl_dev.runs(folder=folder, columns=["target"]).to_dicts()
    assert told["not_reached"]["since"] == row.not_reached.since
    assert run.state() == "running" and not run.result_file.exists()


@pytest.mark.slow
def test_the_first_answer_removes_it(own_sshd, quick, another_process, tmp_path, monkeypatch):
    "A host that was off and is back, behind a real sshd. Its run has not ended by that."
    monkeypatch.delenv("FSDL_STORE", raising=False)
    folder = tmp_path / "project"
    run = running(folder, own_sshd.target(tmp_path / "far"))
    own_sshd.stop()
    assert fsdl_dev.runs(folder=folder)[0].not_reached
    own_sshd.start()
    another_process()
    command = [sys.executable, "-c", "from fsdl_dev.cli.main import main; main()", "runs", "--json"]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    [told] = json.loads(said.stdout)
    assert told["not_reached"] is None and told["state"] == "running", told
    assert contact.silent_targets(run.path.parent.parent) == set()
    assert fsdl_dev.runs(folder=folder)[0].not_reached is None
