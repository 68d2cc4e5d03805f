"""The lines between machines of a run, with real processes: a wrong key, a late peer, one that is killed or stopped."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from following import until

from fsdl_dev.worker.gang.link import Lead, Machine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the options of a socket are those of Linux")
PEER = """
    import sys, time
    from fsdl_dev.core.errors import FsdlError
    from fsdl_dev.worker.gang.link import join_lead

    token, node, port, patience = sys.argv[1], *map(float, sys.argv[2:])
    try:
        line = join_lead("a-run", token, int(node), "127.0.0.1", int(port), lambda: False, f"gpu{node:.0f}", patience)
    except FsdlError as error:
        sys.exit(f"refused: {error.what}")
    while not line.cut:
        message = line.hear(0.1) or {}
        if "turn" in message:
            line.say(slots=[0], device="cpu")
        if "go" in message:
            line.say(b"\\xff\\n" * 500_000, file="logs/rank1.log")
            line.say(status=7)
"""


def peer(lead: Lead, token: str = "secret", node: int = 1, patience: float = 60) -> subprocess.Popen:
    program = [sys.executable, "-c", textwrap.dedent(PEER), token, str(node), str(lead.port), str(patience)]
    return subprocess.Popen(program, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def lead():
    kept = []
    made = Lead("a-run", "secret", 2, "127.0.0.1", silence=4.0, keep=lambda *file: kept.append(file)).listen()
    made.kept = kept
    yield made
    made.close()


def gathered(lead: Lead) -> bool:
    return lead.gather(lambda node, words: None, lambda: False, patience=60)


def test_a_wrong_key_is_refused_and_a_late_peer_comes_in(lead):
    stranger = peer(lead, token="guessed", patience=0.5)
    assert "refused: The first machine did not answer" in stranger.communicate(timeout=60)[1]
    assert not lead.lines and not lead.machines
    made = []
    threading.Timer(1.0, lambda: made.append(peer(lead))).start()  # the lead waits already
    assert gathered(lead) and lead.machines[1] == Machine("gpu1", [0], "cpu")
    lead.tell(go=True)
    lead.settle(60)
    assert lead.statuses == {1: 7} and lead.lost() == []
    assert lead.kept == [("logs/rank1.log", b"\xff\n" * 500_000)], "bytes come as they were"
    lead.close()
    assert made[0].wait(60) == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_peer_that_is_killed_or_stands_still_is_lost(lead, how):
    other = peer(lead)
    assert gathered(lead) and lead.lost() == []
    os.kill(other.pid, how)
    try:
        until(lambda: lead.lost() == ["gpu1"], lambda: f"{lead.machines} {lead.lines[1].cut}", 60)
    finally:
        other.kill()
        other.wait(60)


def test_a_connection_that_says_nothing_keeps_nobody_out(lead):
    """Strangers that connect and are silent: each has a thread of its own, and the peer comes in meanwhile."""
    import socket

    silent = [socket.create_connection(("127.0.0.1", lead.port)) for _ in range(5)]
    began, other = time.monotonic(), peer(lead)
    assert gathered(lead), time.monotonic() - began
    lead.close()
    assert other.wait(60) == 0
    for one in silent:
        one.close()
