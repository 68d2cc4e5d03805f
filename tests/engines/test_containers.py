"""Containers: real runs under Podman (and Docker's own client, where there is a service for it), and the
commands of engines that are not here.
"""

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from far_folder import FarFolder, wait_for
from slurm_lab import SlurmLab, sbatch
from sshd import start_sshd

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.events import read_events
from fsdl_dev.core.fold.life import Restarts
from fsdl_dev.core.job import Job, LaunchRecord, Resources
from fsdl_dev.core.rundir import create_run_dir, write_json
from fsdl_dev.core.settings import Project, find_project
from fsdl_dev.core.states import FINAL
from fsdl_dev.core.units import Money
from fsdl_dev.engines.remote.containers import image_checks
from fsdl_dev.engines.target import get_target
from fsdl_dev.environments.dockerfile import dockerfile_of_lock
from fsdl_dev.money.ledger import run_used
from fsdl_dev.money.limits import Limit, limits_to_json, price_to_json
from fsdl_dev.money.price import Price
from fsdl_dev.worker.failures import explain_failure
from fsdl_dev.worker.processes import identity, run_processes
from fsdl_dev.worker.slots import slots_table

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containers need Linux")
IMAGE = f"localhost/fsdl-test-tiny:{os.getpid()}"  # removed at the end, under no other session
PROGRAMS = "sh ls cat id date sed tr mkdir mv rm uname tail head sleep env grep printf touch".split()
# The image has a shell and little else; Python and the libraries it needs are mounted from this machine.
HOST = sorted(
    {
        str(path)
        for path in (Path("/usr"), Path("/lib"), Path("/lib64"), Path(sys.base_prefix), Path(sys.prefix))
        if path.exists() and not path.is_symlink()
    }
)
MOUNTS = tuple(
    f"{path}:{path}:ro"
    for path in HOST
    if not any(path != other and path.startswith(other + "/") for other in HOST)
)


class Podman:
    """A Podman that works on this machine: in a mount namespace without the second cgroup tree, and within the
    limits that we may set.
    """

    def __init__(self, folder: Path):
        folder.mkdir()
        (folder / "containers.conf").write_text(
            '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n'
        )
        real = shutil.which("podman")
        plain = f"#!/bin/sh\nexport CONTAINERS_CONF='{folder}/containers.conf'\nexec '{real}' \"$@\"\n"
        apart = (
            f"#!/bin/sh\nexport CONTAINERS_CONF='{folder}/containers.conf'\nexec unshare -m sh -c 'umount"
            f' /sys/fs/cgroup/unified 2>/dev/null; exec "$@"\' sh \'{real}\' "$@"\n'
        )
        self.path, self.why = f"{folder}:{os.environ['PATH']}", ""
        for text in (plain, apart):
            (folder / "podman").write_text(text)
            (folder / "podman").chmod(0o755)
            self.load(folder)
            self.why = self.call(
                "run",
                "--rm",
                "--pid",
                "host",
                "--network",
                "host",
                "--shm-size",
                "8m",
                IMAGE,
                "sh",
                "-c",
                ":",
            ).stderr.strip()
            if not self.why:
                return

    def call(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["podman", *words],
            env={**os.environ, "PATH": self.path},
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )

    def load(self, folder: Path) -> None:
        """An image of one program, from this machine's busybox."""
        if self.call("image", "exists", IMAGE).returncode == 0:
            return
        packed = folder / "image.tar"
        with tarfile.open(packed, "w") as archive:
            archive.add(shutil.which("busybox"), "bin/busybox")
            merged = {
                name: os.readlink(f"/{name}") for name in ("lib", "lib64") if os.path.islink(f"/{name}")
            }
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
    if (
        b"statically"
        not in subprocess.run(["file", "-L", shutil.which("busybox")], capture_output=True).stdout
    ):
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
    return far.fields(
        **{
            "environment": "image",
            "image": IMAGE,
            "container": "podman",
            "mounts": (*MOUNTS, f"{far.code}:{far.code}"),
            **more,
        }
    )


def test_a_run_in_a_container(far, podman):
    text = (
        "import os\nprint(os.getpid(), os.environ['WORD'], os.path.exists('/etc/debian_version'),"
        " sorted(os.listdir('/')))\nopen('made.txt', 'w').write('by the job')"
    )
    run = far.make(text)
    state = far.finish(run, fields(far, env={"WORD": "süß $HOME"}), environment={"PATH": podman.path})
    assert state == "succeeded", far.log(run)
    said = run.log(0).read_text()
    assert (
        " süß $HOME False " in said and "'boot'" not in said and "'srv'" not in said
    )  # the image's own root, not the machine's
    made = far.code / "made.txt"
    assert made.read_text() == "by the job" and made.stat().st_uid == os.getuid()
    notes = [event["text"] for event in read_events(run.events) if event["kind"] == "note"]
    assert any(IMAGE in note and len(note.split()[-1]) >= 64 for note in notes), notes
    wait_for(lambda: podman.call("ps", "-a", "--format", "{{.Names}}").stdout.split() == [])


def test_process_numbers_and_network_are_the_machine_s(far, podman, monkeypatch):
    monkeypatch.setenv("FSDL_STATE", str(far.state))
    run = far.make("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(3000)")
    child = far.start(run, fields(far), environment={"PATH": podman.path})
    wait_for(lambda: run.log(0).exists() and run.log(0).read_text().strip())
    number = int(run.log(0).read_text())
    assert [row.run for row in slots_table() if row.slots] == [run.id]  # leased in the machine's own table
    assert number in run_processes(run.id) and run.last_state()["host"] == os.uname().nodename
    assert podman.call("ps", "--format", "{{.Names}}").stdout.split() == [run.id]
    child.send_signal(signal.SIGTERM)
    child.wait(240)
    assert run.state() == "cancelled", far.log(run)
    wait_for(lambda: podman.call("ps", "-a", "--format", "{{.Names}}").stdout.split() == [])


SAVES = """
import os, signal, sys, time
def save(*_):
    print("saved", flush=True); sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(3000)
"""


def test_a_cap_in_money_holds_in_a_container(far, podman):
    """The worker counts there; what the job does at SIGTERM is done, and the container is gone."""
    price = Price(Money(60, "USD"), "slot", "a test")
    limit = Limit("money", 0.5, "USD", "--max-cost 0.5")
    launch = LaunchRecord(limits=limits_to_json([limit]), price=price_to_json(price))
    run = far.make(SAVES, launch)
    assert far.finish(run, fields(far), environment={"PATH": podman.path}) == "failed", far.log(run)
    assert "--max-cost 0.5" in run.last_state()["reason"] and "saved" in run.log(0).read_text()
    assert 0.4 < run_used(run, "money", "USD") < 0.55
    wait_for(lambda: podman.call("ps", "-a", "--format", "{{.Names}}").stdout.split() == [])


def test_a_container_does_not_outlive_its_start_script(far, podman):
    """SIGKILL, which the script cannot hand on: what runs in the container notices, saves, and ends."""
    run = far.make(SAVES)
    child = far.start(run, fields(far), environment={"PATH": podman.path})
    wait_for(lambda: run.log(0).exists() and "up" in run.log(0).read_text())
    os.kill(child.pid, signal.SIGKILL)
    child.wait(60)
    wait_for(lambda: run.state() in FINAL)
    assert run.state() == "cancelled" and "saved" in run.log(0).read_text(), far.log(run)
    wait_for(lambda: podman.call("ps", "-a", "--format", "{{.Names}}").stdout.split() == [])


@pytest.mark.slow
@pytest.mark.parametrize("cancel", [False, True])
def test_a_container_whose_host_lost_its_start_script_is_ended_by_name(podman, tmp_path, monkeypatch, cancel):
    """By SSH. Nothing in the container notices here: the one who looks ends it, or the one who cancels."""
    names = []
    sshd = start_sshd(tmp_path / "sshd", environment={"PATH": podman.path})
    try:
        monkeypatch.setenv("FSDL_SSH_CONFIG", str(sshd.config))
        live = tmp_path / "live"
        live.mkdir()
        (live / "pyproject.toml").touch()
        project = find_project(live)
        storage = tmp_path / "far"
        target = get_target(
            "ssh",
            project,
            {
                "host": sshd.host,
                "storage": str(storage),
                "environment": "image",
                "image": IMAGE,
                "container": "podman",
                "grace_seconds": 3,
            },
        )
        run = create_run_dir(project.store, Job(kind="script", name="job", script="job.py"))
        run.set_state(run.writer("launcher"), "queued", "handed over")
        write_json(run.path / "engine.json", {"kind": "ssh", "name": "ssh", "id": run.id, "host": sshd.host})
        (storage / "runs" / run.id / ".started").mkdir(parents=True)
        gone = subprocess.run(
            ["sh", "-c", "echo $$"], capture_output=True, text=True
        ).stdout.strip()  # a start script that was killed
        (storage / "runs" / run.id / ".started" / "who").write_text(
            f"{gone} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()} 1\n"
        )
        names.append(run.id)
        left = podman.call(
            "run",
            "--detach",
            "--rm",
            "--name",
            run.id,
            "--pid",
            "host",
            "--network",
            "host",
            IMAGE,
            "sh",
            "-c",
            "sleep 3000",
        )
        assert left.returncode == 0, left.stderr
        other = podman.call(
            "run",
            "--detach",
            "--rm",
            "--name",
            "somebody-else",
            "--pid",
            "host",
            "--network",
            "host",
            IMAGE,
            "sh",
            "-c",
            "sleep 3000",
        )
        if cancel:
            target.cancel(run)
        wait_for(lambda: target.poll(run) in FINAL)
        assert target.poll(run) == "lost", run.last_state()  # it was before anybody cancelled
        wait_for(
            lambda: podman.call("ps", "-a", "--format", "{{.Names}}").stdout.split() == ["somebody-else"]
        )
        assert other.returncode == 0, other.stderr
    finally:
        podman.call(
            "rm", "--force", "--ignore", "--time", "0", "somebody-else", *names
        )  # a name that is gone keeps no other
        sshd.stop()


def test_a_container_that_lost_its_engine_s_program_is_ended_here(podman, tmp_path, monkeypatch):
    """Killed between its start and the worker's first word."""
    monkeypatch.setenv("PATH", podman.path)
    (tmp_path / "pyproject.toml").touch()
    project = find_project(tmp_path)
    run = create_run_dir(project.store, Job(kind="script", name="job", script="job.py"))
    run.set_state(run.writer("launcher"), "queued", "submitted")
    program = subprocess.Popen(
        [
            "podman",
            "run",
            "--rm",
            "--name",
            run.id,
            "--pid",
            "host",
            "--network",
            "host",
            IMAGE,
            "sh",
            "-c",
            "sleep 3000",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        write_json(run.path / "worker.json", identity(program.pid).as_dict())
        wait_for(lambda: podman.call("ps", "--format", "{{.Names}}").stdout.split() == [run.id])
        target = get_target("test", project, {"image": IMAGE, "container": "podman"})
        assert target.poll(run) == "queued"
        os.killpg(program.pid, signal.SIGKILL)
        program.wait(60)
        assert target.poll(run) == "lost"
        wait_for(lambda: podman.call("ps", "-a", "--format", "{{.Names}}").stdout.split() == [])
    finally:
        podman.call("rm", "--force", "--ignore", "--time", "0", run.id)


def test_shared_memory_is_as_large_as_asked(far, podman):
    run = far.make("import os\nstat = os.statvfs('/dev/shm')\nprint(stat.f_blocks * stat.f_frsize)")
    assert far.finish(run, fields(far, shm="96m"), environment={"PATH": podman.path}) == "succeeded", far.log(
        run
    )
    assert int(run.log(0).read_text()) == 96 * 1024**2


def test_a_read_only_mount_stays_as_it_is(far, podman, tmp_path):
    (tmp_path / "data, 1").mkdir()
    (tmp_path / "data, 1" / "x").write_text("here")
    run = far.make(
        "from pathlib import Path\npath ="
        f" Path({str(tmp_path / 'data, 1' / 'x')!r})\nprint(path.read_text())\ntry:\n   "
        " path.write_text('other')\nexcept OSError as error:\n    print(error.strerror)"
    )
    mounts = (*MOUNTS, f"{far.code}:{far.code}", f"{tmp_path}/data, 1:{tmp_path}/data, 1:ro")
    assert far.finish(run, fields(far, mounts=mounts), environment={"PATH": podman.path}) == "succeeded", (
        far.log(run)
    )
    assert (
        run.log(0).read_text() == "here\nRead-only file system\n"
        and (tmp_path / "data, 1" / "x").read_text() == "here"
    )


def test_an_image_without_python_fails_the_run(far, podman):
    run = far.make()
    assert far.finish(run, fields(far, mounts=(), python=None), environment={"PATH": podman.path}) == "failed"
    failure = explain_failure(run)
    assert (
        failure.message.startswith("There is no Python at python3.")
        and failure.command == "an image that has Python 3.11 or newer on its PATH"
    )


def test_an_image_that_cannot_be_had_fails_the_run(far, podman):
    run = far.make()
    assert (
        far.finish(
            run,
            fields(far, image="localhost:1/none/such@sha256:" + 64 * "0"),
            environment={"PATH": podman.path},
        )
        == "failed"
    )
    failure = explain_failure(run)
    assert "could not be had" in failure.message and failure.command.startswith(
        "podman pull localhost:1/none/such@sha256:"
    )
    assert [event["state"] for event in read_events(run.events) if event["kind"] == "phase"] == [
        "start",
        "fail",
    ]


def test_an_engine_that_fails_is_told(far, podman):
    """The container never starts: its mount is not there."""
    run = far.make()
    assert (
        far.finish(
            run, fields(far, mounts=(*MOUNTS, "/no/such/folder:/x")), environment={"PATH": podman.path}
        )
        == "failed"
    )
    assert "before the worker began" in run.last_state()["reason"] and "/no/such/folder" in far.log(run)


def test_no_engine_is_told(far):
    run = far.make()
    assert (
        far.finish(run, fields(far, container="apptainer"), environment={"PATH": "/usr/bin:/bin"}) == "failed"
    )
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
    assert (
        "no Pyxis" in run.last_state()["reason"] and 'container = "apptainer"' in explain_failure(run).command
    )


def test_an_image_that_will_not_do_is_refused_before_anything_is_queued(podman, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", podman.path)
    (tmp_path / "pyproject.toml").touch()
    project = find_project(tmp_path)
    for image, says in ((IMAGE, "has no python3"), ("localhost:1/none/such:1", "cannot be run")):
        target = get_target("test", project, {"image": image, "container": "podman"})
        with pytest.raises(FsdlError, match=says):
            target.admit(
                Job(kind="script", name="job", script="job.py", resources=Resources(gpus=0)), project
            )


PYTHON_IMAGE = "localhost/fsdl-test-python:1"


@pytest.fixture(scope="session")
def python_image(podman, tmp_path_factory) -> Iterator[str]:
    """An image with this Python, the libraries it needs, and nothing else: no fsdl_dev, no psutil."""
    base, folder = Path(sys.base_prefix), tmp_path_factory.mktemp("python image")
    dynamic = [Path(sys.executable).resolve(), *base.glob("lib/python3*/lib-dynload/*.so")]
    listed = subprocess.run(["ldd", *dynamic], capture_output=True, text=True, timeout=240).stdout
    libraries = {
        word
        for line in listed.splitlines()
        for word in line.split()
        if word.startswith("/") and not word.endswith(":")
    }
    with tarfile.open(folder / "image.tar", "w") as archive:
        archive.add(shutil.which("busybox"), "bin/busybox")
        for name, target in {
            "bin/sh": "busybox",
            "usr/bin/env": "../../bin/busybox",
            "usr/bin/python3": str(Path(sys.executable).resolve()),
        }.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        for path in sorted({str(Path(sys.executable).resolve()), *libraries}):
            archive.add(os.path.realpath(path), path.lstrip("/"))
        library = next(base.glob("lib/python3*/os.py")).parent
        archive.add(
            library,
            str(library).lstrip("/"),
            filter=lambda entry: (
                None
                if {"site-packages", "test", "__pycache__", "idlelib", "ensurepip"}
                & set(Path(entry.name).parts[-2:])
                else entry
            ),
        )
        for name in ("tmp", "etc", "proc", "sys", "dev"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(entry)
    podman.call("import", "--change", "ENV PATH=/usr/bin:/bin", str(folder / "image.tar"), PYTHON_IMAGE)
    yield PYTHON_IMAGE
    podman.call("image", "rm", "--force", PYTHON_IMAGE)


@pytest.mark.slow
def test_the_local_target_in_a_container(podman, python_image, tmp_path, monkeypatch):
    """A run of this machine's own target: slots leased as ever, the worker's process seen from outside,
    cancelled from outside.
    """
    monkeypatch.setenv("PATH", podman.path)
    monkeypatch.setenv("FSDL_STATE", str(tmp_path / "state"))
    live = tmp_path / "prøject, with spaces"
    live.mkdir()
    (live / "pyproject.toml").touch()
    (live / "job.py").write_text(
        "import os, sys, time\nprint(os.path.exists('/etc/debian_version'), sys.prefix, flush=True)\nif"
        " sys.argv[1:]: time.sleep(3000)\nopen('made.txt', 'w').write('here')"
    )
    project = find_project(live)
    target = get_target("test", project, {"image": python_image, "container": "podman", "shm": "64m"})
    runs = []
    for args in ((), ("wait",)):
        job = Job(kind="script", name="job", script="job.py", args=args, resources=Resources(gpus=0))
        target.admit(job, project)
        assert "podman run --rm" in target.plan(job, project)
        run = create_run_dir(project.store, job)
        write_json(run.snapshot_file, {"digest": "none", "code": str(live)})
        target.submit(run, job, project)
        runs.append(run)
    wait_for(lambda: target.poll(runs[0]) in FINAL)
    assert target.poll(runs[0]) == "succeeded", runs[0].worker_log.read_text() + runs[0].log(0).read_text()
    assert (
        runs[0].log(0).read_text().startswith("False ") and (live / "made.txt").stat().st_uid == os.getuid()
    )
    wait_for(
        lambda: (
            runs[1].log(0).exists()
            and runs[1].log(0).read_text()
            and target.poll(runs[1]) not in ("queued", "starting")
        )
    )
    assert [row.run for row in slots_table() if row.slots] == [runs[1].id] and target.poll(
        runs[1]
    ) == "running"
    target.cancel(runs[1])
    wait_for(lambda: target.poll(runs[1]) in FINAL)
    assert target.poll(runs[1]) == "cancelled"


@pytest.fixture
def docker(podman, tmp_path) -> Iterator[str]:
    """Docker's own client, with Podman's service in the place of its daemon: the PATH and DOCKER_HOST for it."""
    if shutil.which("docker") is None:
        pytest.skip("no docker client here")
    socket = tmp_path / "engine.sock"
    service = subprocess.Popen(
        ["podman", "system", "service", "--time=1200", f"unix://{socket}"],
        env={**os.environ, "PATH": podman.path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(
            lambda: (
                subprocess.run(
                    ["docker", "version"],
                    env={**os.environ, "DOCKER_HOST": f"unix://{socket}"},
                    capture_output=True,
                ).returncode
                == 0
            )
        )
        yield f"unix://{socket}"
    finally:
        os.killpg(service.pid, signal.SIGKILL)
        service.wait(60)


def test_docker_s_client_takes_the_command(far, podman, docker):
    """Written for Docker, understood by its client, run by Podman's service."""
    run = far.make(
        "import os\nprint(os.getuid(), os.environ['USER'], os.statvfs('/dev/shm').f_blocks *"
        " os.statvfs('/dev/shm').f_frsize)"
    )
    environment = {"PATH": podman.path, "DOCKER_HOST": docker, "USER": "someone"}
    assert far.finish(run, fields(far, container="docker"), environment=environment) == "succeeded", far.log(
        run
    )
    assert run.log(0).read_text().split() == [str(os.getuid()), "someone", str(64 * 1024**2)]


def test_a_signal_reaches_the_worker_through_docker(far, podman, docker):
    run = far.make("import time\nprint('up', flush=True)\ntime.sleep(3000)")
    child = far.start(
        run, fields(far, container="docker"), environment={"PATH": podman.path, "DOCKER_HOST": docker}
    )
    wait_for(lambda: run.log(0).exists() and "up" in run.log(0).read_text())
    child.send_signal(signal.SIGTERM)
    child.wait(240)
    assert run.state() == "cancelled", far.log(run)


# --- on a Slurm cluster
# ------------------------------------------------------------------------------------------------


@pytest.fixture
def lab(slurm, podman, tmp_path):  # noqa: F811
    fields = dict(
        environment="image",
        image=IMAGE,
        container="podman",
        mounts=(*MOUNTS, f"{tmp_path}:{tmp_path}"),
        python=sys.executable,
        shm="64m",
        env={"MASTER_ADDR": "127.0.0.1"},
        setup=(f"export PATH='{podman.path}'",),
    )
    lab = SlurmLab(tmp_path, slurm, **fields)
    yield lab
    lab.stop_all()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_gang_of_containers_in_one_slurm_job(lab, podman):
    lab.write(
        "gang.py",
        """
        import os, torch
        torch.distributed.init_process_group("gloo")
        total = torch.ones(1); torch.distributed.all_reduce(total)
        print(int(total), os.environ["CUDA_VISIBLE_DEVICES"], os.path.exists("/etc/debian_version"), flush=True)
        torch.distributed.destroy_process_group()
        """,
    )
    run = lab.submit("gang.py", resources=Resources(nodes=2, procs=1, time="9m"))
    assert lab.wait(run, seconds=500)["state"] == "succeeded", lab.told(run)
    assert {lab.target().logs(run, rank)[0] for rank in range(2)} == {"2 0 False\n"}, lab.told(run)
    wait_for(lambda: podman.call("ps", "-a", "--format", "{{.Names}}").stdout.split() == [])


@pytest.mark.slow
def test_a_container_in_a_slurm_job_is_cancelled(lab, podman):
    run = lab.steps(resources=Resources(gpus=1, time="5m"))
    lab.wait(run, "running")
    lab.until(run, lambda: (run.checkpoints / "last.ckpt").exists())
    lab.target().cancel(run)
    assert lab.wait(run)["state"] == "cancelled", lab.told(run)
    wait_for(lambda: podman.call("ps", "-a", "--format", "{{.Names}}").stdout.split() == [])


def lives(run) -> list:
    """The further lives of a run."""
    return Restarts.read(run.events).events


@pytest.mark.slow
def test_a_container_in_a_slurm_job_goes_on_after_a_requeue(lab, slurm, podman):  # noqa: F811
    run = lab.steps(resources=Resources(gpus=1, time="5m"))
    lab.life(run, 1)
    slurm.run("scontrol", "requeue", lab.job(run))
    lab.life(run, 2)
    lab.enough.touch()
    assert lab.wait(run)["state"] == "succeeded", lab.told(run)
    assert "resumed from" in lab.target().logs(run, 0)[0]
    (restart,) = lives(run)
    assert restart.reason == "Slurm queued it again", (
        "the image has no Slurm: its start script asked for the worker"
    )
    wait_for(lambda: not list(run.path.glob(".questions.*")))


@pytest.mark.slow
def test_a_container_in_a_slurm_job_is_preempted_and_has_a_time_limit(lab, slurm, podman):  # noqa: F811
    run = lab.steps(resources=Resources(gpus=8), given={"nodelist": "n1", "signal_seconds": 20})
    other = lab.steps(given={"time": "1m", "grace_seconds": 5.0, "max_restarts": 1})
    lab.life(run, 1)
    sbatch("--qos=high", "--gres=gpu:8", "--nodelist=n1", "--time=1", script="sleep 2")
    lab.until(run, lambda: lives(run))
    lab.until(other, lambda: lives(other))
    lab.life(run, 2)
    lab.life(other, 2)
    lab.enough.touch()
    for each, cause in ((run, "preempted"), (other, "limit")):
        assert lab.wait(each)["state"] == "succeeded", lab.told(each)
        assert [restart.cause for restart in lives(each)] == [cause], lab.told(each)


def test_a_digest_by_pyxis():
    """The page says what the check says: Enroot reads digests in its newer versions only."""

    class Fields:
        environment, container, image, partition = (
            "image",
            "pyxis",
            "registry.example/team/train@sha256:" + 64 * "a",
            "gpu",
        )

    (pinned,) = image_checks(Fields)
    assert pinned.verdict == "pass" and "Enroot of 3.x reads no digest" in pinned.message
    Fields.image = "registry.example/team/train:v1"
    (tagged,) = image_checks(Fields)
    assert (
        tagged.verdict == "warn" and "enroot import" in tagged.fix and "takes no digest" not in tagged.message
    )
    Fields.image = "/shared/train.sqsh"
    assert image_checks(Fields)[0].message == "/shared/train.sqsh by pyxis"


def test_a_dockerfile_from_a_lock_is_built(podman, tmp_path):
    "On a base by digest, whose Python is this machine's, mounted. Another Python than the lock's is refused in words."
    python = Path(sys.base_prefix) / "bin" / "python3"
    if subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode:
        pytest.skip(f"{python} has no pip")
    digest = podman.call("image", "inspect", "--format", "{{.Digest}}", IMAGE).stdout.strip()
    base, lock = f"{IMAGE.rpartition(':')[0]}@{digest}", tmp_path / "requirements.txt"
    with zipfile.ZipFile(tmp_path / "tinyone-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("tinyone.py", "VALUE = 1\n")
        info = "tinyone-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinyone\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    settings = {
        "PATH": f"{python.parent}:/bin",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "/wheels",
        "PIP_TARGET": "/opt",
    }
    words = ["build", "--isolation", "chroot", "--pull=never", "--network", "host", "-t", f"{IMAGE}-made"]
    words += [word for mount in (*MOUNTS, f"{tmp_path}:/wheels:ro") for word in ("-v", mount)]
    words += [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
    version = "{}.{}".format(*sys.version_info[:2])
    try:
        for minor, wanted in (
            (version, "Successfully installed tinyone-1.0"),
            ("3.99", "the lock is for 3.99"),
        ):
            lock.write_text(f"#    uv pip compile --python-version {minor} x.in\ntinyone==1.0\n")
            file = tmp_path / "Dockerfile"
            file.write_text(dockerfile_of_lock(Project(tmp_path, "study"), lock, base))
            done = podman.call(*words, "-f", str(file), str(tmp_path))
            assert wanted in done.stdout + done.stderr and (done.returncode == 0) == (minor == version), done
    finally:
        podman.call("image", "rm", "--force", f"{IMAGE}-made")
