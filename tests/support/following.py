"""Following runs in tests: waiting for something, what happened to a run, and a program that goes on until it
is told that it was enough.
"""

import time
from collections.abc import Callable

from fsdl_dev.core.events import read_events

PATIENCE = 300  # seconds; a test that needs more has failed

# Ends when the file that its argument names is there, without an argument the file `enough` in its run
# directory. Saves its step, and goes on from it.
STEPS = """\
import os, signal, sys, time, zipfile
from fsdl_dev.core.events import current_writer
from fsdl_dev.core.event_kinds import Checkpoint
start = int(zipfile.ZipFile(os.environ["FSDL_RESUME"]).read("step")) if os.environ.get("FSDL_RESUME") else 0
step, rank, told = start, int(os.environ.get("RANK", 0)), []
enough = sys.argv[1] if sys.argv[1:] else os.environ["FSDL_RUN_DIR"] + "/enough"
print("resumed from" if start else "starts at", start, flush=True)
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
def save():
    if rank: return
    path = os.environ["FSDL_RUN_DIR"] + "/checkpoints/last.ckpt"
    with zipfile.ZipFile(path + "~", "w") as file: file.writestr("step", str(step))
    os.replace(path + "~", path)
    current_writer().write(Checkpoint(path="checkpoints/last.ckpt", step=step))
while not os.path.exists(enough):
    step += 1
    time.sleep(0.05)
    if step % 10 == 0: save()
    if told:
        save()
        print("saved at", step, flush=True)
        sys.exit(143)
print("finished", flush=True)
"""


def until(true, what: str | Callable[[], str] = "", patience: float = PATIENCE, pause: float = 0.05):
    """Wait for something to be true; give it back. `what` is said where it never comes; a function is asked then."""
    end = time.monotonic() + patience
    while not (found := true()):
        assert time.monotonic() < end, f"waited in vain: {what() if callable(what) else what}"
        time.sleep(pause)
    return found


def ended_by_one_look(target, run) -> dict:
    """The final state of a run that another process launched, by the first round of a process that looks."""
    target.follower.follow(run)
    target.follower.round(PATIENCE)
    return run.last_state()


def events(run, kind: str) -> list[dict]:
    """The events of one kind of a run, or of a run directory."""
    return [event for event in read_events(getattr(run, "dir", run).events) if event["kind"] == kind]


def states(run) -> list[str]:
    """The states that a run went through."""
    seen = [event["state"] for event in events(run, "state")]
    return [state for number, state in enumerate(seen) if not number or seen[number - 1] != state]


def saved_in_life(run, number: int) -> bool:
    """Whether this life of a run has saved something."""
    placed, saved = events(run, "placed"), events(run, "checkpoint")
    return len(placed) == number and bool(saved) and saved[-1]["t"] > placed[-1]["t"]
