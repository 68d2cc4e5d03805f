"""Environments on the remote machine: made by a real uv from a real index, compared by real Pythons."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from far_folder import LOCK, FarFolder, python_of, wait_for

from fsdl_dev.core.events import read_events
from fsdl_dev.core.rundir import read_json, write_json
from fsdl_dev.engines.remote.environment import (
    compare_environment,
    environment_digest,
    far_facts,
    found_environment,
)
from fsdl_dev.engines.transport.shell import LocalShell
from fsdl_dev.snapshot.environment import environment_lock
from fsdl_dev.worker.failures import explain_failure

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a remote machine is Linux")
UV = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
USES = "import coolname, iniconfig, sys\nprint(sys.prefix, coolname.__file__.startswith(sys.prefix))"


@pytest.fixture(scope="session")
def index_works(tmp_path_factory) -> dict:
    """Versions of two small packages that uv can install here. Skips, saying so, where it cannot."""
    if UV is None:
        pytest.skip("no uv here (pip install uv)")
    folder = tmp_path_factory.mktemp("index")
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, folder / "env"], check=True, timeout=300)
    done = subprocess.run(
        [UV, "pip", "install", "--python", folder / "env" / "bin" / "python", "coolname", "iniconfig"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        pytest.skip(f"uv can install nothing here: {done.stderr.strip()[-300:]}")
    listed = subprocess.run(
        [UV, "pip", "list", "--format=json", "--python", folder / "env" / "bin" / "python"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return {package["name"]: package["version"] for package in json.loads(listed.stdout)}


@dataclass
class Making:
    far: FarFolder
    lock: dict
    path: str  # with uv

    def fields(self, **more):
        return self.far.fields(**{"environment": "lock", **more})

    def start(self, run, **more):
        environment = {"PATH": self.path, **more.pop("environment", {})}
        return self.far.start(
            run,
            more.pop("fields", self.fields()),
            more.pop("lock", self.lock),
            environment=environment,
            **more,
        )

    def phases(self, run):
        """What the script said; the worker's own part of the phase comes after it, without words."""
        return [
            event["state"]
            for event in read_events(run.events)
            if event["kind"] == "phase" and event["name"] == "environment" and event.get("text")
        ]

    @property
    def place(self) -> Path:
        return self.far.storage / "envs" / environment_digest(self.lock)


@pytest.fixture
def making(tmp_path, index_works):
    far = FarFolder(tmp_path)
    yield Making(far, {**LOCK, "packages": index_works}, f"{Path(UV).parent}:{os.environ['PATH']}")
    far.close()


def test_uv_makes_the_environment_once(making):
    run = making.far.make(USES)
    assert making.start(run).wait(300) == 0, making.far.log(run)
    assert run.state() == "succeeded" and run.log(0).read_text().split() == [
        *str(making.place).split(),
        "True",
    ]
    assert making.phases(run) == ["start", "end"] and "coolname" in (run.logs / "environment.log").read_text()
    second = making.far.make(USES)
    assert (
        making.start(second, environment={"PATH": "/usr/bin:/bin", "HOME": str(making.far.storage)}).wait(300)
        == 0
    ), making.far.log(second)
    assert second.state() == "succeeded" and making.phases(second) == []  # not even uv was needed
    assert [path.name for path in making.place.parent.iterdir()] == [making.place.name]


def test_several_runs_wait_for_one_maker(making):
    runs = [making.far.make(USES) for _ in range(4)]
    children = [making.start(run) for run in runs]
    assert [child.wait(300) for child in children] == [0] * 4, [making.far.log(run) for run in runs]
    texts = [
        event.get("text") or ""
        for run in runs
        for event in read_events(run.events)
        if event["kind"] == "phase" and event["state"] == "end"
    ]
    assert sum("packages for Python" in text for text in texts) == 1 and all(
        run.state() == "succeeded" for run in runs
    )


def slow_uv(folder: Path) -> Path:
    """A folder with a uv that waits before it does its work: time to kill it."""
    folder.mkdir()
    (folder / "uv").write_text(
        f"#!/bin/sh\n[ ! -e '{folder}/slow' ] || {{ touch '{folder}/asked'; exec sleep 3000; }}\nexec '{UV}'"
        ' "$@"\n'
    )
    (folder / "uv").chmod(0o755)
    (folder / "slow").touch()
    return folder


def test_the_guard_of_a_dead_maker_is_taken_over(making, tmp_path):
    folder = slow_uv(tmp_path / "slow uv")
    making.path = f"{folder}:{os.environ['PATH']}"
    dead, run = making.far.make(USES), making.far.make(USES)
    child = making.start(dead)
    wait_for(lambda: Path(f"{making.place}.guard", "count").exists())
    os.killpg(child.pid, signal.SIGKILL)
    child.wait(60)
    (folder / "slow").unlink()
    assert making.start(run, environment={"FSDL_GUARD_PATIENCE": "3"}).wait(300) == 0, making.far.log(run)
    assert run.state() == "succeeded" and [path.name for path in making.place.parent.iterdir()] == [
        making.place.name
    ]


def test_a_cancelled_run_stops_making(making, tmp_path):
    folder = slow_uv(tmp_path / "slow uv")
    making.path = f"{folder}:{os.environ['PATH']}"
    run = making.far.make(USES)
    child = making.start(run)
    wait_for(
        lambda: (
            making.phases(run) == ["start"]
            and Path(f"{making.place}.guard", "count").exists()
            and (folder / "asked").exists()
        )
    )
    child.send_signal(signal.SIGTERM)
    assert child.wait(240) == 143
    assert (
        run.state() == "cancelled"
        and read_json(run.result_file)["state"] == "cancelled"
        and not list(making.place.parent.glob("*.guard"))
    )
    with pytest.raises(ProcessLookupError):  # neither uv nor the counter is left
        wait_for(lambda: os.killpg(child.pid, 0))


def test_an_interrupted_run_goes_on(making, tmp_path):
    """Its machine is taken away while its environment is made: no cancel was asked for, so another life follows
    and is let in.
    """
    folder = slow_uv(tmp_path / "slow uv")
    making.path = f"{folder}:{os.environ['PATH']}"
    run = making.far.make(USES, requeue="slurm")
    child = making.start(run)
    wait_for(
        lambda: (
            making.phases(run) == ["start"]
            and Path(f"{making.place}.guard", "count").exists()
            and (folder / "asked").exists()
        )
    )
    child.send_signal(signal.SIGUSR1)  # the warning before
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(1)
    child.send_signal(signal.SIGTERM)
    assert (
        child.wait(240) == 85
        and run.state() == "queued"
        and not run.result_file.exists()
        and making.phases(run) == ["start", "fail"]
    )
    (folder / "slow").unlink()
    assert making.start(run).wait(300) == 0 and run.state() == "succeeded", making.far.log(run)

    again = making.far.make("print('never')", requeue="slurm")
    write_json(again.path / "cancel.json", {"by": "somebody"})
    making.lock = {**making.lock, "packages": {"iniconfig": making.lock["packages"]["iniconfig"]}}
    (folder / "slow").touch()
    child = making.start(again)
    wait_for(lambda: making.phases(again) == ["start"] and Path(f"{making.place}.guard", "count").exists())
    child.send_signal(signal.SIGTERM)
    assert child.wait(240) == 143 and again.state() == "cancelled"


def test_a_package_that_no_index_has_fails_the_run(making):
    making.lock = {**making.lock, "packages": {"fsdl-no-such-package": "9.9.9"}}
    run = making.far.make(USES)
    assert making.start(run).wait(600) == 1
    failure = explain_failure(run)
    print(failure.text())
    assert (
        run.state() == "failed"
        and "making the environment" in failure.message
        and "fsdl-no-such-package" in failure.text()
    )
    assert making.phases(run) == ["start", "fail"] and not list(making.place.parent.glob("*.guard"))


def test_no_uv_fails_the_run_with_the_command_that_installs_it(making, tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True, timeout=300)
    run = making.far.make(USES)
    child = making.start(
        run,
        fields=making.fields(python=str(bare / "bin" / "python")),
        environment={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert child.wait(300) == 1 and run.state() == "failed"
    assert (
        run.last_state()["reason"].startswith("There is no uv here")
        and "astral.sh/uv" in explain_failure(run).command
    )


def test_uv_as_a_package_of_the_python_that_is_there(making, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    if subprocess.run([sys.executable, "-m", "uv", "--version"], capture_output=True).returncode:
        pytest.skip("uv is no package of this Python")
    run = making.far.make(USES)
    assert making.start(run, environment={"PATH": "/usr/bin:/bin", "HOME": str(home)}).wait(300) == 0, (
        making.far.log(run)
    )
    assert run.state() == "succeeded"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_home_folder_that_cannot_be_written(making, tmp_path):
    """The caches go to the storage."""
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    nobody = 65534
    python = shutil.which("python3", path="/usr/bin:/bin")
    if (
        python is None
        or subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode
    ):
        pytest.skip("no system Python of 3.11 or newer")
    tools = Path("/tmp") / f"fsdl-uv-{os.getpid()}"
    tools.mkdir(mode=0o755)
    shutil.copy(UV, tools / "uv")
    try:
        run = making.far.make(USES)
        making.far.script(run, making.fields(python=python), making.lock)
        for folder in [folder for folder in (tmp_path, *tmp_path.parents) if "pytest-" in str(folder)]:
            folder.chmod(0o755)
        for path in [making.far.storage, *making.far.storage.rglob("*")]:
            os.chown(path, nobody, nobody)
        making.far.state.mkdir()
        os.chown(making.far.state, nobody, nobody)
        environment = {
            **os.environ,
            "PATH": f"{tools}:/usr/bin:/bin",
            "HOME": str(home),
            "FSDL_STATE": str(making.far.state),
        }
        done = subprocess.run(
            ["sh", run.path / "start.sh"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            user=nobody,
            group=nobody,
            extra_groups=[],
        )
        assert done.returncode == 0, done.stderr
        assert (
            run.state() == "succeeded"
            and (making.far.storage / "cache" / "uv").is_dir()
            and not list(home.iterdir())
        )
    finally:
        shutil.rmtree(tools)


@pytest.mark.parametrize("minor", ["2.7", "3.6", "3.9", "3.12"])
def test_every_python_says_what_it_is(minor):
    pythons = python_of(minor)
    if not pythons:
        pytest.skip(f"no Python {minor} here")
    facts = far_facts(LocalShell(), str(pythons[minor]))
    assert facts.python.startswith(minor + "."), facts
    checks = compare_environment({**LOCK, "packages": {}}, facts)
    assert [check.verdict for check in checks] == ["warn" if minor == "3.12" else "fail"]


def test_this_environment_agrees_with_its_own_lock(monkeypatch):
    # other tests change what is installed
    monkeypatch.setattr("fsdl_dev.engines.remote.environment._KEPT", {})
    lock, facts = environment_lock(), far_facts(LocalShell(), sys.executable)
    (check,) = compare_environment(lock, facts)
    assert check.verdict == "pass", check
    assert found_environment(lock, facts) == {"python": facts.python}
    older = replace(facts, packages={**facts.packages, "pytest": "1.0"})
    assert found_environment(lock, older) == {"python": facts.python, "pytest": "1.0"}


def test_the_answer_comes_through_setup_lines_and_their_noise(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mypython").symlink_to(sys.executable)
    setup = ("echo 'Welcome to the cluster!'", f"export PATH='{tmp_path}/bin':$PATH")
    assert far_facts(LocalShell(), "mypython", setup).python == sys.version.split()[0]
