"""A project on a Slurm cluster for tests: launches through the target, and what they need to wait for."""

import os
import subprocess
import textwrap
from pathlib import Path

from following import STEPS, saved_in_life, until

from fsdl_dev.core.events import read_events
from fsdl_dev.core.job import Job, LaunchRecord, Resources
from fsdl_dev.core.rundir import RunDir, create_run_dir, write_json
from fsdl_dev.core.settings import find_project, open_store
from fsdl_dev.core.states import FINAL
from fsdl_dev.engines.target import get_target
from fsdl_dev.snapshot.take import take_snapshot

PATIENCE = 300  # seconds; a test that needs more has failed


class SlurmLab:
    """A project in a folder, named targets on one cluster, and its runs."""

    def __init__(self, folder: Path, slurm, **fields):
        self.slurm, self.folder, self.enough, self.runs = slurm, folder / "prøject", folder / "enough", []
        self.folder.mkdir(parents=True)
        self.write("steps.py", STEPS)
        self.write("hello.py", "import sys\nprint('hello', *sys.argv[1:], flush=True)\n")
        given = {"account": "lab", "time": "10m", "grace_seconds": 12, **fields}
        lines = [f"{name} = {self._toml(value)}" for name, value in given.items()]
        self.write(
            "pyproject.toml",
            '[project]\nname = "lab"\nversion = "0"\n[tool.fsdl_dev.targets.cluster]\nkind = "slurm"\n'
            + "\n".join(lines)
            + "\n",
        )
        self.project = find_project(self.folder)
        open_store(self.project)

    @staticmethod
    def _toml(value) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f'"{key}" = "{item}"' for key, item in value.items()) + "}"
        return (
            str(value).lower()
            if isinstance(value, bool)
            else (
                f'"{value}"'
                if isinstance(value, str)
                else str(list(value) if isinstance(value, tuple) else value)
            )
        )

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(textwrap.dedent(text), encoding="utf-8")

    def target(self, **given):
        return get_target("cluster", self.project, given)

    def make(
        self,
        script: str,
        *args: str,
        resources: Resources = Resources(gpus=0),
        given: dict | None = None,
        **more,
    ) -> tuple[RunDir, Job]:  # noqa: B008
        """A run directory, not submitted."""
        job = Job(
            kind="script", name=script, script=script, args=tuple(map(str, args)), resources=resources, **more
        )
        self.target(**(given or {})).admit(job, self.project)
        launch = LaunchRecord(target="cluster", target_fields=given or {}, project=str(self.folder))
        run = create_run_dir(self.project.store, job, launch)
        write_json(run.snapshot_file, {"digest": take_snapshot(self.project).digest})
        self.runs.append(run)
        return run, job

    def submit(self, script: str, *args: str, given: dict | None = None, **more) -> RunDir:
        """A submitted run."""
        run, job = self.make(script, *args, given=given, **more)
        self.target(**(given or {})).submit(run, job, self.project)
        return run

    def steps(self, **more) -> RunDir:
        """A run that goes on until it is told that it was enough."""
        return self.submit("steps.py", str(self.enough), **more)

    def stop_all(self) -> None:
        self.enough.touch()

    def job(self, run: RunDir) -> str:
        """The run's number in Slurm."""
        return self.target().engine.record(run).id

    def until(self, run: RunDir, true, seconds: float = PATIENCE):
        """Poll, as a card does, until something is true."""
        return until(
            lambda: (self.target().poll(run), true())[1],
            lambda: f"{run.last_state()}\n{self.told(run)}",
            seconds,
            pause=0.1,
        )

    def wait(self, run: RunDir, *states: str, seconds: float = PATIENCE) -> dict:
        """The state event that the run has come to."""
        self.until(run, lambda: run.state() in (states or FINAL), seconds)
        return run.last_state()

    def life(self, run: RunDir, number: int) -> None:
        """Wait until this life of the run has saved something."""
        self.until(run, lambda: saved_in_life(run, number))

    def told(self, run: RunDir) -> str:
        """What a test that fails should show."""
        logs = "".join(
            f"--- {file.name}\n{file.read_text(errors='replace')[-1500:]}\n"
            for file in sorted(run.logs.glob("*"))
        )
        events = [
            (event["kind"], event.get("state"), event.get("reason") or event.get("text"))
            for event in read_events(run.events)
        ]
        return f"{events[-12:]}\n{logs}\n{self.slurm.run('squeue', check=False)}"


def sbatch(*words: str, script: str = "sleep 600") -> str:
    """Somebody else's job; its number."""
    done = subprocess.run(
        ["sbatch", "--parsable", "--output=/dev/null", "--job-name=somebody's", *words, "--wrap", script],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
