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

# in the environment of a process with a page, and of its children: one that locked again would wait for itself
PAGE = "PAGE_OF_A_TEST"


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
    if os.environ.get(PAGE):
        yield
        return
    with ExitStack() as kept:
        with _locked("addresses-next", fcntl.LOCK_EX):
            kept.enter_context(_locked("addresses", fcntl.LOCK_SH))
        os.environ[PAGE] = "open"
        try:
            yield
        finally:
            os.environ.pop(PAGE, None)


@contextmanager
def changed_addresses():
    "No page is open inside the block, which adds or removes addresses."
    assert not os.environ.get(PAGE), "this process has a page open: make or end the hosts before or after it"
    with _locked("addresses-next", fcntl.LOCK_EX), _locked("addresses", fcntl.LOCK_EX):
        yield
