"""Storage against the real thing: folders behind an sshd, full disks, quotas, closed homes, a bucket."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port
from sshd import WHILE_TESTED, reached_sshd

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.files import file_sha256
from fsdl_dev.engines.transport.shell import Unreachable, with_patience
from fsdl_dev.engines.transport.ssh import SshShell
from fsdl_dev.engines.transport.storage import open_storage


@pytest.fixture
def counted(shell, monkeypatch):
    """The shell, and the list of commands that went through it."""
    calls, run = [], shell.run
    monkeypatch.setattr(shell, "run", lambda command, **more: calls.append(command) or run(command, **more))
    return shell, calls


@pytest.mark.parametrize("kind", ["ssh", "sftp"])
def test_the_verbs(kind, shell, tmp_path):
    root = tmp_path / "größe 'x' $HOME"
    storage = open_storage(str(root) if kind == "ssh" else f"sftp://lab{root}", shell)
    assert storage.root == str(root)
    log = storage.join("runs", "läuft", "events", "worker.jsonl")
    storage.write(log, b"first\nsecond\n")
    assert (
        Path(log).read_bytes() == b"first\nsecond\n"
        and storage.exists(log)
        and not storage.exists(storage.join("none"))
    )
    assert (
        storage.read(log) == b"first\nsecond\n"
        and storage.read(log, 6, 9) == b"sec"
        and storage.read(log, 99) == b""
    )
    assert storage.sizes([storage.join("runs"), storage.join("none")]) == {log: 13}
    assert storage.read_many([(log, 6, 100), (storage.join("none"), 0, 1)]) == [b"second\n", None]
    with pytest.raises(FileNotFoundError):
        storage.read(storage.join("none"))
    (tmp_path / "local").write_bytes(bytes(range(256)) * 300)
    storage.put(tmp_path / "local", storage.join("blobs", "ab", "x"))
    assert storage.get(storage.join("blobs", "ab", "x"), tmp_path / "back") == 256 * 300
    assert (tmp_path / "back").read_bytes() == (tmp_path / "local").read_bytes()
    storage.write_many({storage.join("many", f"{n} ü"): b"%d" % n for n in range(50)})
    assert len(storage.sizes([storage.join("many")])) == 50
    assert not list((root / "tmp").iterdir())
    storage.remove([storage.join("runs"), storage.join("many")])
    assert not Path(log).exists() and (root / "blobs/ab/x").exists()


def test_the_sizes_of_500_runs_are_one_command(counted, tmp_path):
    shell, calls = counted
    storage = open_storage(str(tmp_path), shell)
    for number in range(500):
        folder = tmp_path / "runs" / f"20261121-120000{number:03d}-brave-otter" / "events"
        folder.mkdir(parents=True)
        (folder / "worker.jsonl").write_bytes(b"x" * number)
    found = storage.sizes(
        [storage.join("runs", path.name, "events") for path in (tmp_path / "runs").iterdir()]
    )
    assert len(found) == 500 and sum(found.values()) == sum(range(500)) and len(calls) == 1
    data = storage.read_many([(path, 0, size) for path, size in found.items()])
    assert [len(part) for part in data] == list(found.values()) and len(calls) == 2


@pytest.fixture
def small_disk(tmp_path):
    """A disk of one megabyte, mounted; skips where this user may not mount."""
    place = tmp_path / "small"
    place.mkdir()

    def mount(options: str) -> Path:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no such disk can be mounted here: {done.stderr.strip()}")
        return place

    yield mount
    subprocess.run(["umount", str(place)], capture_output=True)


@pytest.mark.parametrize("kind", ["ssh", "sftp"])
def test_a_full_disk_is_told_with_what_is_left(kind, shell, small_disk, tmp_path):
    place = small_disk("size=1m")
    storage = open_storage(
        str(place) if kind == "ssh" else f"sftp://lab{place}",
        shell,
        field="storage under [tool.fsdl_dev.targets.lab]",
    )
    storage.write(storage.join("runs", "job.json"), b"{}")
    with pytest.raises(FsdlError) as caught:
        storage.write(storage.join("runs", "job.json"), os.urandom(3_000_000))
    error = caught.value
    assert (
        "disk at lab is full" in error.what and "of 1.0M are left" in error.what and str(place) in error.where
    )
    assert "storage under [tool.fsdl_dev.targets.lab]" in error.fix
    assert (place / "runs/job.json").read_bytes() == b"{}" and not list((place / "tmp").iterdir())
    storage.write(storage.join("runs", "again.json"), b"{}")


def test_no_more_files_is_told_as_such(shell, small_disk):
    place = small_disk("size=9m,nr_inodes=10")
    storage = open_storage(str(place), shell)
    with pytest.raises(FsdlError) as caught:
        storage.write_many({storage.join(f"runs/{n}"): b"x" for n in range(30)})
    assert "No more files may be made there" in caught.value.what
    assert not list((place / "tmp").iterdir())


@pytest.fixture
def quota_disk(tmp_path):
    """A disk with a quota of 2 MB that the kernel enforces: btrfs in a file. Skips where that cannot be had."""
    place, image = tmp_path / "quota", tmp_path / "disk"
    place.mkdir()
    if shutil.which("mkfs.btrfs") is None:
        pytest.skip("no mkfs.btrfs here (Debian: apt-get install btrfs-progs)")
    with open(image, "wb") as file:
        file.truncate(200 << 20)
    steps = (["mkfs.btrfs", "-q", "-f", image], ["mount", "-o", "loop", image, place],
        ["btrfs", "quota", "enable", place],
             ["btrfs", "qgroup", "limit", "2M", place], ["sync", "-f", place])  # fmt: skip
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, timeout=240)
            if done.returncode:
                pytest.skip(f"no disk with a quota can be mounted here: {done.stderr.strip()}")
        yield place
    finally:
        subprocess.run(["umount", str(place)], capture_output=True, timeout=240)


@pytest.mark.parametrize("kind", ["ssh", "sftp"])
def test_a_quota_is_told_with_whose_it_is(kind, shell, quota_disk):
    user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
    storage = open_storage(str(quota_disk) if kind == "ssh" else f"sftp://lab{quota_disk}", shell)
    storage.write(storage.join("small"), b"fits")
    with pytest.raises(FsdlError) as caught:
        storage.write(storage.join("blob"), os.urandom(6_000_000))
    assert (
        f"quota of user {user} at lab is used up" in caught.value.what
        and "of the disk itself are left on" in caught.value.what
    )
    assert "ssh lab quota -s" in caught.value.fix and "storage" in caught.value.fix
    assert (
        not (quota_disk / "blob").exists()
        and not list((quota_disk / "tmp").iterdir())
        and (quota_disk / "small").read_bytes() == b"fits"
    )


def test_a_closed_home_names_the_field(shell, small_disk):
    place = small_disk("size=1m,ro")
    storage = open_storage(f"{place}/.fsdl_dev", shell, field="storage under [tool.fsdl_dev.targets.lab]")
    with pytest.raises(FsdlError) as caught:
        storage.write(storage.join("runs", "job.json"), b"{}")
    assert "may not write there" in caught.value.what
    assert 'storage under [tool.fsdl_dev.targets.lab] = "/scratch/' in caught.value.fix


def test_a_cut_connection_costs_one_piece(sshd, shell, tmp_path, monkeypatch):
    """50 MB, the connection cut once in each direction."""
    monkeypatch.setattr("fsdl_dev.engines.transport.transfer.CHUNK", 16 << 20)
    storage = open_storage(str(tmp_path / "far"), shell)
    source = tmp_path / "model.ckpt"
    source.write_bytes(os.urandom(50_000_000))
    digest, heard = hashlib.sha256(source.read_bytes()).hexdigest(), []

    def say(text: str) -> None:
        heard.append(text)
        if len(heard) == 2:
            sshd.cut()

    storage.put(source, storage.join("blobs", "x"), say)
    assert file_sha256(storage.join("blobs", "x")) == digest
    assert storage.sent < 60_000_000 and not list((tmp_path / "far/tmp").iterdir())
    heard.clear()
    assert storage.get(storage.join("blobs", "x"), tmp_path / "back.ckpt", say, digest) == 50_000_000
    assert hashlib.sha256((tmp_path / "back.ckpt").read_bytes()).hexdigest() == digest and len(heard) == 3


def test_a_fetch_goes_on_where_it_was_stopped(sshd, shell, tmp_path):
    storage = open_storage(str(tmp_path / "far"), shell)
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "model.ckpt").write_bytes(os.urandom(50_000_000))

    def stop(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storage.get(storage.join("model.ckpt"), tmp_path / "model.ckpt", stop)
    assert not (tmp_path / "model.ckpt").exists()
    assert storage.get(storage.join("model.ckpt"), tmp_path / "model.ckpt") == 50_000_000 - (16 << 20)
    assert (tmp_path / "model.ckpt").read_bytes() == (tmp_path / "far" / "model.ckpt").read_bytes()


def test_home_is_the_far_home(shell, sshd):
    assert (
        open_storage(None, shell).root == f"{sshd.home}/.fsdl_dev" == open_storage("~/.fsdl_dev", shell).root
    )


def test_an_unreachable_host_is_no_missing_file(sshd, shell, tmp_path):
    storage = open_storage(str(tmp_path), shell)
    shell.run("true")
    sshd.stop()
    try:
        with pytest.raises(Unreachable), with_patience(0):
            storage.exists(storage.join("x"))
    finally:
        sshd.start()


def test_a_bucket(bucket, tmp_path):
    storage = open_storage("s3://runs/größe")
    log = storage.join("runs", "one", "events", "worker.jsonl")
    assert log.startswith("s3://runs/größe/runs/")
    storage.write(log, b"first\n")
    assert storage.sizes([storage.join("runs", "one", "events"), storage.join("runs", "none")]) == {log: 6}
    storage.write(log, b"first\nsecond\n")
    assert storage.sizes([storage.join("runs", "one", "events")]) == {log: 13}, "nothing stale from a cache"
    assert storage.read(log, 6) == b"second\n" and storage.read(log, 99) == b"" and storage.exists(log)
    assert storage.read_many([(log, 6, 3), (storage.join("none"), 0, 9)]) == [b"sec", None]
    source = tmp_path / "model.ckpt"
    source.write_bytes(os.urandom(20_000_000))
    storage.put(source, storage.join("model.ckpt"))
    assert (
        storage.get(
            storage.join("model.ckpt"),
            tmp_path / "back",
            sha256=hashlib.sha256(source.read_bytes()).hexdigest(),
        )
        == 20_000_000
    )
    storage.remove([storage.join("runs")])
    assert not storage.exists(log)
    with pytest.raises(FileNotFoundError):
        storage.read(log)


def test_a_bucket_that_is_not_there(bucket):
    with pytest.raises(FsdlError) as caught:
        open_storage("s3://nobody-has-this/x").write("s3://nobody-has-this/x/y", b"1")
    assert "bucket" in caught.value.what.lower() and "s3://nobody-has-this/x" in caught.value.where


def test_a_missing_package_is_named(monkeypatch):
    from fsspec.registry import _registry

    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)
    with pytest.raises(FsdlError) as caught:
        open_storage("s3://runs/x")
    assert "s3fs" in caught.value.what and caught.value.fix == "pip install 'fsdl-dev[s3]'"


def test_waiting_is_bounded(shell):
    with pytest.raises(Unreachable):
        shell.run(WHILE_TESTED, timeout=1)


def test_a_far_side_with_nothing_but_busybox(tmp_path, monkeypatch):
    """Small containers and appliances: none of GNU's tools."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("no busybox here")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in subprocess.run([busybox, "--list"], capture_output=True, text=True).stdout.split():
        (tools / name).symlink_to(busybox)
    with reached_sshd(
        tmp_path / "sshd", monkeypatch, login=f'PATH={tools} exec sh -c "$SSH_ORIGINAL_COMMAND"'
    ):
        shell = SshShell("lab")
        assert shell.run("find --help 2>&1 | head -n 1").out.startswith("BusyBox")
        storage = open_storage(str(tmp_path / "größe"), shell)
        storage.write_many({storage.join("runs", f"{n} ü", "x"): os.urandom(n) for n in range(20)})
        assert sorted(storage.sizes([storage.join("runs")]).values()) == list(range(20))
        assert (
            len(storage.sizes([storage.join("runs")], depth=1)) == 0
            and len(storage.sizes([storage.join("runs")], depth=2)) == 20
        )
        assert len(storage.read(storage.join("runs", "7 ü", "x"), 3)) == 4
        (tmp_path / "big").write_bytes(os.urandom(20_000_000))
        storage.put(tmp_path / "big", storage.join("big"))
        digest = hashlib.sha256((tmp_path / "big").read_bytes()).hexdigest()
        assert file_sha256(storage.join("big")) == digest
        assert storage.get(storage.join("big"), tmp_path / "back", sha256=digest) == 20_000_000
        with pytest.raises(FsdlError) as caught:
            storage.write_many({storage.join("big", "below"): b"1"})
        assert "lab" in str(caught.value) and not list(Path(storage.root, "tmp").iterdir())


def test_a_bucket_that_does_not_answer_or_does_not_let_us_in(monkeypatch):
    pytest.importorskip("s3fs")
    for key, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(Unreachable) as caught:
        open_storage("s3://runs/x").sizes(["s3://runs/x/runs"])
    assert "s3://runs/x does not answer" in caught.value.what and caught.value.passing
    with pytest.raises(Unreachable):
        open_storage("s3://runs/x").write("s3://runs/x/y", b"1")
