"""Containers: real runs under Podman (and Docker's own client, where there is a service for it), and the commands of engines that are not here."""

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from far_folder import FarFolder, wait_for

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.events import read_events
from fsdl_dev.launch.container import require_image, wrap_worker
from fsdl_dev.launch.failures import explain_failure
from fsdl_dev.launch.processes import run_processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containers need Linux")
IMAGE = "localhost/fsdl-test-tiny:1"
PROGRAMS = "sh ls cat id date sed tr mkdir mv rm uname tail head sleep env grep printf touch".split()
# The image has a shell and little else; Python and the libraries it needs are mounted from this machine.
HOST = sorted({str(path) for path in (Path("/usr"), Path("/lib"), Path("/lib64"), Path(sys.base_prefix), Path(sys.prefix)) if path.exists() and not path.is_symlink()})
MOUNTS = tuple(f"{path}:{path}:ro" for path in HOST if not any(path != other and path.startswith(other + "/") for other in HOST))


class Podman:
    """A Podman that works on this machine: in a mount namespace without the second cgroup tree, and within the limits that we may set."""

    def __init__(self, folder: Path):
        folder.mkdir()
        (folder / "containers.conf").write_text('[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n')
        real = shutil.which("podman")
        plain = f"#!/bin/sh\nexport CONTAINERS_CONF='{folder}/containers.conf'\nexec '{real}' \"$@\"\n"
        apart = f"#!/bin/sh\nexport CONTAINERS_CONF='{folder}/containers.conf'\nexec unshare -m sh -c 'umount /sys/fs/cgroup/unified 2>/dev/null; exec \"$@\"' sh '{real}' \"$@\"\n"
        self.path, self.why = f"{folder}:{os.environ['PATH']}", ""
        for text in (plain, apart):
            (folder / "podman").write_text(text)
            (folder / "podman").chmod(0o755)
            self.load(folder)
            self.why = self.call("run", "--rm", "--pid", "host", "--network", "host", "--shm-size", "8m", IMAGE, "sh", "-c", ":").stderr.strip()
            if not self.why:
                return

    def call(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run(["podman", *words], env={**os.environ, "PATH": self.path}, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)

    def load(self, folder: Path) -> None:
        """An image of one program, from this machine's busybox."""
        if self.call("image", "exists", IMAGE).returncode == 0:
            return
        packed = folder / "image.tar"
        with tarfile.open(packed, "w") as archive:
            archive.add(shutil.which("busybox"), "bin/busybox")
            merged = {name: os.readlink(f"/{name}") for name in ("lib", "lib64") if os.path.islink(f"/{name}")}
            for name, target in {**{f"bin/{name}": "busybox" for name in PROGRAMS}, **merged}.items():
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, target
                archive.addfile(link)
            for name in ("tmp", "etc", "proc", "sys", "dev"):
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
                archive.addfile(entry)
        self.call("import", str(packed), IMAGE)


@pytest.fixture(scope="session")
def podman(tmp_path_factory) -> Iterator[Podman]:
    for program in ("podman", "busybox"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here (Debian: apt-get install podman crun busybox-static)")
    if b"statically" not in subprocess.run(["file", "-L", shutil.which("busybox")], capture_output=True).stdout:
        pytest.skip("busybox is not linked statically here")
    engine = Podman(tmp_path_factory.mktemp("engine") / "bin")
    if engine.why:
        pytest.skip(f"Podman cannot run a container here: {engine.why[-300:]}")
    yield engine
    engine.call("image", "rm", "--force", IMAGE)


@pytest.fixture
def far(tmp_path):
    folder = FarFolder(tmp_path)
    yield folder
    folder.close()


def fields(far: FarFolder, **more) -> SimpleNamespace:
    return far.fields(**{"environment": "image", "image": IMAGE, "container": "podman", "mounts": (*MOUNTS, f"{far.code}:{far.code}"), **more})


def test_a_run_in_a_container(far, podman):
    text = "import os\nprint(os.getpid(), os.environ['WORD'], os.path.exists('/etc/debian_version'), sorted(os.listdir('/')))\nopen('made.txt', 'w').write('by the job')"
    run = far.make(text)
    state = far.finish(run, fields(far, env={"WORD": "süß $HOME"}), environment={"PATH": podman.path})
    assert state == "succeeded", far.log(run)
    said = run.log(0).read_text()
    assert " süß $HOME False " in said and "'boot'" not in said and "'srv'" not in said  # the image's own root, not the machine's
    made = far.code / "made.txt"
    assert made.read_text() == "by the job" and made.stat().st_uid == os.getuid()
    notes = [event["text"] for event in read_events(run.events) if event["kind"] == "note"]
    assert any(IMAGE in note and len(note.split()[-1]) >= 64 for note in notes), notes
    assert podman.call("ps", "-a", "--format", "{{.Names}}").stdout.split() == []


def test_process_numbers_and_network_are_the_machine_s(far, podman):
    run = far.make("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)")
    child = far.start(run, fields(far), environment={"PATH": podman.path})
    wait_for(lambda: run.log(0).exists() and run.log(0).read_text().strip())
    number = int(run.log(0).read_text())
    assert number in run_processes(run.id) and run.last_state()["host"] == os.uname().nodename
    assert podman.call("ps", "--format", "{{.Names}}").stdout.split() == [run.id]
    began = time.monotonic()
    child.send_signal(signal.SIGTERM)
    child.wait(60)
    assert run.state() == "cancelled" and time.monotonic() - began < 30, far.log(run)
    wait_for(lambda: podman.call("ps", "-a", "--format", "{{.Names}}").stdout.split() == [])


def test_shared_memory_is_as_large_as_asked(far, podman):
    run = far.make("import os\nstat = os.statvfs('/dev/shm')\nprint(stat.f_blocks * stat.f_frsize)")
    assert far.finish(run, fields(far, shm="96m"), environment={"PATH": podman.path}) == "succeeded", far.log(run)
    assert int(run.log(0).read_text()) == 96 * 1024**2


def test_a_read_only_mount_stays_as_it_is(far, podman, tmp_path):
    (tmp_path / "data, 1").mkdir()
    (tmp_path / "data, 1" / "x").write_text("here")
    run = far.make(f"from pathlib import Path\npath = Path({str(tmp_path / 'data, 1' / 'x')!r})\nprint(path.read_text())\ntry:\n    path.write_text('other')\nexcept OSError as error:\n    print(error.strerror)")
    mounts = (*MOUNTS, f"{far.code}:{far.code}", f"{tmp_path}/data, 1:{tmp_path}/data, 1:ro")
    assert far.finish(run, fields(far, mounts=mounts), environment={"PATH": podman.path}) == "succeeded", far.log(run)
    assert run.log(0).read_text() == "here\nRead-only file system\n" and (tmp_path / "data, 1" / "x").read_text() == "here"


def test_an_image_without_python_fails_the_run(far, podman):
    run = far.make()
    assert far.finish(run, fields(far, mounts=(), python=None), environment={"PATH": podman.path}) == "failed"
    failure = explain_failure(run)
    assert failure.message.startswith("There is no Python at python3.") and failure.command == "an image that has Python 3.11 or newer on its PATH"


def test_an_image_that_cannot_be_had_fails_the_run(far, podman):
    run = far.make()
    assert far.finish(run, fields(far, image="localhost:1/none/such@sha256:" + 64 * "0"), environment={"PATH": podman.path}) == "failed"
    failure = explain_failure(run)
    assert "could not be had" in failure.message and failure.command.startswith("podman pull localhost:1/none/such@sha256:")
    assert [event["state"] for event in read_events(run.events) if event["kind"] == "phase"] == ["start", "fail"]


def test_an_engine_that_fails_is_told(far, podman):
    """The container never starts: its mount is not there."""
    run = far.make()
    assert far.finish(run, fields(far, mounts=(*MOUNTS, "/no/such/folder:/x")), environment={"PATH": podman.path}) == "failed"
    assert "before the worker began" in run.last_state()["reason"] and "/no/such/folder" in far.log(run)


def test_no_engine_is_told(far):
    run = far.make()
    assert far.finish(run, fields(far, container="apptainer"), environment={"PATH": "/usr/bin:/bin"}) == "failed"
    if shutil.which("apptainer", path="/usr/bin:/bin") is None:
        assert run.last_state()["reason"] == "There is no apptainer on this machine."


def test_slurm_without_pyxis_is_told(far):
    if shutil.which("srun") is None:
        pytest.skip("no srun here")
    far.storage, before = far.storage.with_name("far"), far.storage
    before.rename(far.storage)  # Pyxis takes no blanks
    far.runtime = far.storage / far.runtime.relative_to(before)
    if " " in str(far.storage) or ":" in str(far.storage):
        pytest.skip("the temporary folder has a blank in its name")
    run = far.make()
    assert far.finish(run, fields(far, container="pyxis", mounts=())) == "failed"
    assert "no Pyxis" in run.last_state()["reason"] and 'container = "apptainer"' in explain_failure(run).command


def test_the_local_target_s_worker_in_a_container(far, podman, monkeypatch):
    """No Python in the image: said before anything is queued. The mounted one is not asked for by require_image."""
    monkeypatch.setenv("PATH", podman.path)
    local = SimpleNamespace(image=IMAGE, container="podman", mounts=MOUNTS, shm="64m")
    run = far.make()
    with pytest.raises(FsdlError, match="has no python3"):
        wrap_worker([sys.executable, "-P", "-m", "fsdl_dev.launch.worker", str(run.path)], local, run.path, [far.storage, far.code])
    with pytest.raises(FsdlError, match="cannot be run"):
        require_image("podman", "localhost:1/none/such:1")


@pytest.fixture
def docker(podman, tmp_path) -> Iterator[str]:
    """Docker's own client, with Podman's service in the place of its daemon: the PATH and DOCKER_HOST for it."""
    if shutil.which("docker") is None:
        pytest.skip("no docker client here")
    socket = tmp_path / "engine.sock"
    service = subprocess.Popen(["podman", "system", "service", "--time=120", f"unix://{socket}"], env={**os.environ, "PATH": podman.path},
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for(lambda: subprocess.run(["docker", "version"], env={**os.environ, "DOCKER_HOST": f"unix://{socket}"}, capture_output=True).returncode == 0, 30)
        yield f"unix://{socket}"
    finally:
        os.killpg(service.pid, signal.SIGKILL)
        service.wait(10)


def test_docker_s_client_takes_the_command(far, podman, docker):
    """Written for Docker, understood by its client, run by Podman's service."""
    run = far.make("import os\nprint(os.getuid(), os.environ['USER'], os.statvfs('/dev/shm').f_blocks * os.statvfs('/dev/shm').f_frsize)")
    environment = {"PATH": podman.path, "DOCKER_HOST": docker, "USER": "someone"}
    assert far.finish(run, fields(far, container="docker"), environment=environment) == "succeeded", far.log(run)
    assert run.log(0).read_text().split() == [str(os.getuid()), "someone", str(64 * 1024**2)]


def test_a_signal_reaches_the_worker_through_docker(far, podman, docker):
    run = far.make("import time\nprint('up', flush=True)\ntime.sleep(60)")
    child = far.start(run, fields(far, container="docker"), environment={"PATH": podman.path, "DOCKER_HOST": docker})
    wait_for(lambda: run.log(0).exists() and "up" in run.log(0).read_text())
    child.send_signal(signal.SIGTERM)
    child.wait(60)
    assert run.state() == "cancelled", far.log(run)
