"""A far storage on this machine, and run directories in it that a start script can start: for tests of the
script itself.
"""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from following import until

from fsdl_dev.core.job import Job, LaunchRecord, Resources
from fsdl_dev.core.rundir import RunDir, create_run_dir, write_json
from fsdl_dev.engines.remote.ship import ship_runtime
from fsdl_dev.engines.remote.start_script import start_script
from fsdl_dev.engines.transport.shell import LocalShell
from fsdl_dev.engines.transport.storage import open_storage

LOCK = {
    "python": {"version": sys.version.split()[0], "implementation": "CPython"},
    "platform": {"system": "Linux", "machine": os.uname().machine, "libc": None},
    "torch": None,
    "driver": None,
    "packages": {},
}


def python_of(*minors: str) -> dict[str, Path]:
    """Other Pythons of this machine, as pyenv or the system keep them: minor version -> program."""
    found = {}
    for program in sorted(Path.home().glob(".pyenv/versions/*/bin/python")):
        found.setdefault(".".join(program.parts[-3].split(".")[:2]), program)
    return {minor: found[minor] for minor in minors if minor in found}


class FarFolder:
    """A storage in a folder with a blank and an umlaut, with fsdl_dev shipped into it."""

    def __init__(self, folder: Path):
        self.storage, self.code, self.state = folder / "far störage", folder / "the code", folder / "state"
        self.code.mkdir(parents=True)
        self.runtime = Path(ship_runtime(open_storage(str(self.storage), LocalShell())))
        self.started: list[subprocess.Popen] = []

    @property
    def unpacked(self) -> Path:
        return self.runtime.with_suffix("")

    @property
    def functions(self) -> Path:
        return self.runtime.with_suffix(".sh")

    def fields(self, **more) -> SimpleNamespace:
        return SimpleNamespace(
            **{
                **dict(
                    environment="there",
                    python=sys.executable,
                    setup=(),
                    env={},
                    image=None,
                    container=None,
                    mounts=(),
                    shm="64m",
                    data={},
                ),
                **more,
            }
        )

    def make(
        self, text: str = "print('the job ran')", launch: LaunchRecord = LaunchRecord(), **placement
    ) -> RunDir:
        """A run of a script, as a target would lay it out."""
        (self.code / "job.py").write_text(text)
        run = create_run_dir(
            self.storage,
            Job(kind="script", name="job", script="job.py", resources=Resources(gpus=0)),
            launch,
        )
        write_json(run.snapshot_file, {"digest": "none", "code": str(self.code)})
        write_json(
            run.path / "placement.json",
            {
                "target": "far",
                "kind": "ssh",
                "project": str(self.code),
                "store": str(self.storage),
                "grace_seconds": 20,
                "allocation": "lease",
                "pool": "far/cpu",
                "slots": list(range(8)),
                "wanted": 1,
                "device": "cpu",
                "gpu_tests": False,
                "runtime": str(self.runtime),
                **placement,
            },
        )
        run.set_state(run.writer("launcher"), "queued", "handed over")
        return run

    def script(self, run: RunDir, fields: SimpleNamespace, lock: dict = LOCK, **more) -> str:
        far = SimpleNamespace(
            run=run.path, storage=self.storage, runtime=self.runtime, work=run.path / "work"
        )
        text = start_script(far, fields, lock, python_default="python3", **more)
        (run.path / "start.sh").write_text(text, encoding="utf-8")
        return text

    def start(
        self,
        run: RunDir,
        fields: SimpleNamespace,
        lock: dict = LOCK,
        shell: str = "sh",
        environment: dict | None = None,
        **more,
    ) -> subprocess.Popen:
        """Start a run's script, as an engine would."""
        self.script(run, fields, lock, **more)
        run.logs.mkdir(exist_ok=True)
        with open(run.worker_log, "ab") as log:
            child = subprocess.Popen(
                [*shlex.split(shell), str(run.path / "start.sh")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "FSDL_STATE": str(self.state), **(environment or {})},
            )
        self.started.append(child)
        return child

    def finish(
        self, run: RunDir, fields: SimpleNamespace, lock: dict = LOCK, patience: float = 300, **more
    ) -> str:
        """Start a run's script and wait for its end; the run's last state."""
        self.start(run, fields, lock, **more).wait(patience)
        return run.state()

    def log(self, run: RunDir) -> str:
        return run.worker_log.read_text(errors="replace") + (
            run.log(0).read_text() if run.log(0).exists() else ""
        )

    def close(self) -> None:
        """End what a failed test left running."""
        for child in self.started:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait(60)


def wait_for(true, patience: float = 240) -> None:
    """Wait until something is true."""
    until(true, patience=patience, pause=0.02)
