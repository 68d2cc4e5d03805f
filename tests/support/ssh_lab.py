"""A project and a target of the kind `ssh`, for tests that launch on the machines of `hosts`."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from following import PATIENCE

import fsdl_dev
from fsdl_dev.core.events import read_events
from fsdl_dev.core.states import FINAL

HELLO = 'import socket\nprint("hello from", socket.gethostname(), flush=True)\n'
UNTIL = """
import pathlib, sys, time
print("up", flush=True)
while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.02)
print("done")
"""
TRAIN = """
# steps until a file appears; a checkpoint every step, and one more when it is told to stop
import os, pathlib, signal, sys, time
import torch
from fsdl_dev.core.events import current_writer
from fsdl_dev.core.event_kinds import Checkpoint
from fsdl_dev.train.loggers import log
folder, stop = pathlib.Path(os.environ["FSDL_RUN_DIR"], "checkpoints"), []
folder.mkdir(exist_ok=True)
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))

def save(name, step):
    torch.save({"state_dict": {"w": torch.full((3,), float(step))}, "global_step": step}, folder / f".{name}")
    os.replace(folder / f".{name}", folder / name)
    current_writer().write(Checkpoint(path=f"checkpoints/{name}", step=step))

for step in range(100_000):
    log(step, loss=1 / (step + 1))
    save("last.ckpt", step)
    print("step", step, flush=True)
    if stop:
        save("stopped.ckpt", step)
        sys.exit(143)
    if pathlib.Path(sys.argv[1]).exists(): break
    time.sleep(0.1)
"""


class Lab:
    "A project under git whose target `box` is a host of `net`."

    def __init__(self, folder: Path, net, host: str = "box", **fields):
        self.folder, self.net, self.runs = folder / "prøject with spaces", net, []
        self.folder.mkdir(parents=True)
        fields = {
            "kind": "ssh",
            "python": sys.executable,
            "grace_seconds": 20,
            **({"host": host} if "hosts" not in fields else {}),
            **fields,
        }
        self.configure(**fields)
        (self.folder / ".gitignore").write_text(".fsdl\n")
        self.git("init", "-q", "-b", "main")
        self.commit()

    def configure(self, **fields) -> None:
        lines = [f"{key} = {_toml(value)}" for key, value in fields.items()]
        (self.folder / "pyproject.toml").write_text("\n".join(["[tool.fsdl_dev.targets.box]", *lines]) + "\n")

    def git(self, *words: str) -> None:
        identity = [
            "-c",
            "user.name=Some One",
            "-c",
            "user.email=someone@example.com",
            "-c",
            "commit.gpgsign=false",
        ]
        subprocess.run(["git", *identity, *words], cwd=self.folder, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a commit")

    def file(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def launch(self, text: str = HELLO, *args: str, name: str = "train.py", **more):
        "Launch a script of this text on the target."
        self.file(name, text)
        run = fsdl_dev.launch(
            name,
            args=[str(arg) for arg in args],
            folder=self.folder,
            **{"on": "box", "gpus": 0, "say": None, **more},
        )
        self.runs.append(run)
        return run

    def launcher(self, text: str, *args: str, **environment) -> subprocess.Popen:
        "A process of its own that may be killed: `lab` is this one, `say` prints."
        program = textwrap.dedent(f"""
            import sys, time
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            from pathlib import Path
            import fsdl_dev
            from ssh_lab import HELLO, TRAIN, UNTIL, Lab, until_log
            lab = Lab.__new__(Lab)
            lab.folder, lab.runs = Path({str(self.folder)!r}), []
            def say(*words): print(*words, flush=True)
            """) + textwrap.dedent(text)
        return subprocess.Popen(
            [sys.executable, "-c", program, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    def far(self, run, *parts: str) -> Path:
        "A path of the run on the remote machine, as this machine sees it."
        return Path(self.net[run_host(run)].home, ".fsdl_dev", "runs", run.id, *parts)


@contextmanager
def opened_lab(folder: Path, net, patch: pytest.MonkeyPatch, **fields) -> Iterator[Lab]:
    "A lab whose machines this process reaches. What still runs at its end is cancelled."
    for key, value in net.environment().items():
        patch.setenv(key, value)
    lab = Lab(folder, net, **fields)
    yield lab
    for run in lab.runs:
        if run.view.state not in FINAL:
            run.cancel()
            until_state(run, *FINAL)


def run_host(run) -> str:
    fields = run.target.fields
    return (getattr(fields, "hosts", ()) or (fields.host,))[0]


def _toml(value) -> str:
    import json

    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def until_state(run, *wanted: str) -> str:
    "Wait for one of some states."
    end = time.monotonic() + PATIENCE
    while (state := run.view.state) not in wanted:
        assert time.monotonic() < end and state not in FINAL, f"{state}: {run.view.reason}\n{told(run)}"
        time.sleep(0.1)
    return state


def until_log(run, text: str, rank: int = 0) -> str:
    """Wait until a rank has written something, and the view has heard of it: output is read at once, events
    in rounds.
    """
    end, start, seen = time.monotonic() + PATIENCE, 0, ""
    while text not in seen:
        more, start = run.target.logs(run.dir, rank, start)
        seen += more
        assert time.monotonic() < end, (
            f"{text!r} never came; {run.view.state}: {run.view.reason}\n{seen}\n{told(run)}"
        )
        if text not in seen:
            assert run.view.state not in FINAL or more, (
                f"{text!r} never came; {run.view.state}: {run.view.reason}\n{seen}\n{told(run)}"
            )
            time.sleep(0.1)
    while run.view.state in ("queued", "starting"):
        assert time.monotonic() < end, f"{run.view.state}: {run.view.reason}\n{told(run)}"
        time.sleep(0.05)
    return seen


def told(run) -> str:
    "Everything that a run left here, for a failed test."
    lines = [
        f"{event['kind']} { ({k: v for k, v in event.items() if k not in ('kind', 't')}) }"
        for event in read_events(run.dir.events)
    ][-30:]
    for name in ("worker.log", "start.log", "rank0.log"):
        path = run.path / "logs" / name
        lines += [f"--- {name}", path.read_text()[-2000:]] if path.exists() else []
    return "\n".join(lines)
