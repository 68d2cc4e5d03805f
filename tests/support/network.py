"""Browsers and changes of this machine's addresses do not meet.

Chromium ends what waits for a connection (net::ERR_NETWORK_CHANGED), also to loopback, whenever an address of this
machine comes or goes. So a page keeps the addresses `steady`, and whoever adds or removes one waits for the pages
that are open; a page that comes later waits behind it, so that each waits for one other at most.
"""

import fcntl
import os
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

held_here = 0  # pages of this process; one that then changed an address would wait for itself


@contextmanager
def _locked(name: str, how: int):
    file = Path(tempfile.gettempdir(), f"fsdl-tests-{os.getuid()}-{name}.lock")
    with open(file, "a", encoding="utf-8") as lock:
        fcntl.flock(lock, how)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # of a forked child's copy too


@contextmanager
def steady_addresses():
    "No address of this machine comes or goes inside the block."
    global held_here
    with ExitStack() as kept:
        with _locked("addresses-next", fcntl.LOCK_EX):
            kept.enter_context(_locked("addresses", fcntl.LOCK_SH))
        held_here += 1
        try:
            yield
        finally:
            held_here -= 1


@contextmanager
def changed_addresses():
    "No page is open inside the block, which adds or removes addresses."
    assert not held_here, "this process has a page open: make or end the hosts before or after it"
    with _locked("addresses-next", fcntl.LOCK_EX), _locked("addresses", fcntl.LOCK_EX):
        yield
