"""Snapshots shipped to a real sshd: what travels, what a cut costs, two people at once, and a far folder that
was wiped.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.engines.remote.ship import CopyTooLarge, ship_runtime, ship_snapshot
from fsdl_dev.engines.transport.shell import Unreachable, with_patience
from fsdl_dev.engines.transport.ssh import SshShell
from fsdl_dev.engines.transport.storage import ShellStorage, open_storage
from fsdl_dev.snapshot.blobs import put_blob, read_blob, scan_packs
from fsdl_dev.snapshot.snapshot import Snapshot, checkout, load_snapshot, save_snapshot


def project(count: int = 5000, seed: int = 0) -> dict[str, bytes]:
    """Files that look like code."""
    words = [word.encode() for word in Path(json.__file__).read_text().split()]
    dice = random.Random(seed)
    return {
        f"package/module {n // 50}/größe_{n}.py": (
            b"# %d\n" % n + b" ".join(dice.choices(words, k=dice.randint(50, 400)))
        )
        for n in range(count)
    }


def take(store: Path, files: dict[str, bytes]) -> Snapshot:
    """A snapshot of some files."""
    entries = {
        path: {"sha256": put_blob(store, data)[0], "mode": "100644", "size": len(data)}
        for path, data in files.items()
    }
    lock = put_blob(store, b'{"python": "3.11"}')[0]
    diff = put_blob(store, b"--- a\n+++ b\n")[0]
    manifest = {
        "files": entries,
        "git": {"commit": "c" * 40, "diff": diff, "dirty": [], "untracked": []},
        "environment": {"lock": lock, "digest": lock},
        "data": [],
        "project": {"import_root": ".", "package": None},
    }
    return save_snapshot(store, manifest)


def arrived(snapshot: Snapshot, root: str) -> dict[str, bytes]:
    """The snapshot's content as the remote machine reads it, by the worker's own code."""
    there = load_snapshot(Path(root), snapshot.digest)
    scan_packs(Path(root))
    assert there.environment == {"python": "3.11"} and there.diff.startswith("---")
    return {path: read_blob(there.store, entry["sha256"]) for path, entry in there.files.items()}


def traffic(storage: ShellStorage, monkeypatch) -> list[int]:
    """Every byte that goes out through the shell: commands, their input, and the content."""
    sent, run = [], storage.shell._once

    def counted(line, data, timeout):
        sent.append(len(line) + len(data))
        return run(line, data, timeout)

    monkeypatch.setattr(storage.shell, "_once", counted)
    return sent


def test_only_what_changed_travels(storage, tmp_path, monkeypatch):
    files = project()
    first = take(tmp_path / "store", files)
    heard = []
    shipped = ship_snapshot(first, storage, say=heard.append)
    total = sum(map(len, files.values()))
    assert (
        shipped.blobs_sent == 5002 and shipped.bytes_sent < total / 2 and heard[-1].startswith("snapshot: ")
    )
    assert arrived(first, storage.root) == files
    sent = traffic(storage, monkeypatch)
    assert ship_snapshot(first, storage).blobs_sent == 0 and sum(sent) < 5_000
    files["package/module 7/größe_350.py"] += b"\nlearning_rate = 0.1\n"
    second = take(tmp_path / "store", files)
    sent.clear()
    shipped = ship_snapshot(second, storage)
    assert shipped.blobs_sent == 1 and shipped.blobs_there == 5001
    print(f"first {total} bytes of content; one changed line sent {sum(sent)} bytes in {len(sent)} commands")
    assert sum(sent) < 400_000 and arrived(second, storage.root) == files


def test_a_cut_costs_what_was_under_way(own_sshd, storage, tmp_path):
    """Killed half way by its own process; the next one sends the rest."""
    files = {f"data/{n}.bin": os.urandom(100_000) for n in range(250)}  # three packs
    snapshot = take(tmp_path / "store", files)

    def stop(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ship_snapshot(snapshot, storage, say=stop)
    with pytest.raises(FsdlError):
        load_snapshot(Path(storage.root), snapshot.digest)  # nobody can load half of it
    again = ship_snapshot(snapshot, open_storage(storage.root, SshShell("lab")))
    assert 0 < again.blobs_there < 200 and 10_000_000 < again.bytes_sent < 20_000_000
    assert arrived(snapshot, storage.root) == files


def test_a_lost_connection_is_ridden_over(own_sshd, storage, tmp_path):
    files = {f"data/{n}.bin": os.urandom(100_000) for n in range(250)} | {
        "data/large.bin": os.urandom(40_000_000)
    }
    snapshot, cuts = take(tmp_path / "store", files), []

    def cut(text: str) -> None:
        if len(cuts) < 3:
            cuts.append(text)
            threading.Timer(0.05, own_sshd.cut).start()

    shipped = ship_snapshot(snapshot, storage, say=cut)
    assert len(cuts) == 3 and shipped.blobs_sent == 253 and arrived(snapshot, storage.root) == files
    assert not [
        path for path in Path(storage.root, "tmp").iterdir() if path.stat().st_size > 1e6 and path.is_file()
    ]


def test_two_people_at_once(own_sshd, storage, tmp_path):
    files = project(400) | {"large.bin": os.urandom(20_000_000), "medium.bin": os.urandom(1_000_000)}
    snapshots = [take(tmp_path / name, files) for name in ("ada", "bob")]
    with ThreadPoolExecutor(2) as pool:
        results = list(
            pool.map(
                lambda snapshot: ship_snapshot(snapshot, open_storage(storage.root, SshShell("lab"))),
                snapshots,
            )
        )
    assert all(result.blobs_sent + result.blobs_there == 404 for result in results)
    assert arrived(snapshots[0], storage.root) == files and not list(Path(storage.root, "tmp").iterdir())


def test_what_is_wiped_or_damaged_there_is_sent_again(storage, tmp_path):
    files = project(300)
    snapshot = take(tmp_path / "store", files)
    ship_snapshot(snapshot, storage)
    storage.remove([storage.join("packs"), storage.join("blobs"), storage.join("snapshots")])
    assert ship_snapshot(snapshot, storage).blobs_sent == 302 and arrived(snapshot, storage.root) == files
    pack = next(Path(storage.root, "packs").iterdir())
    pack.chmod(0o600)
    os.truncate(pack, pack.stat().st_size - 10)  # a disk that lost power
    assert ship_snapshot(snapshot, storage).blobs_sent == 302 and arrived(snapshot, storage.root) == files


def test_killed_while_shipping_leaves_a_consistent_store(own_sshd, storage, tmp_path):
    files = {f"data/{n}.bin": os.urandom(100_000) for n in range(300)}
    snapshot = take(tmp_path / "store", files)
    program = (
        "import sys; from pathlib import Path; from fsdl_dev.snapshot.snapshot import load_snapshot; from"
        " fsdl_dev.engines.transport.ssh import SshShell\nfrom fsdl_dev.engines.transport.storage import"
        " open_storage; from fsdl_dev.engines.remote.ship import ship_snapshot\nimport time; said = []\ndef"
        " say(text):\n    said.append(print(text, flush=True))\n    time.sleep(3000 * (len(said) > 1))  # it"
        " does not get to its end before it is killed\nship_snapshot(load_snapshot(Path(sys.argv[1]),"
        " sys.argv[2]), open_storage(sys.argv[3], SshShell('lab')), say=say)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "store"), snapshot.digest, storage.root],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline().startswith("snapshot:")
    child.kill()
    child.communicate(timeout=240)
    for pack in Path(storage.root, "packs").iterdir():
        data = pack.read_bytes()
        line = data.partition(b"\n")[0] + b"\n"
        assert hashlib.sha256(line).hexdigest() == pack.stem and len(line) + sum(
            json.loads(line).values()
        ) == len(data)
    assert not Path(storage.root, "snapshots").exists()
    again = ship_snapshot(snapshot, storage)
    assert again.blobs_there > 0 and arrived(snapshot, storage.root) == files
    assert len(list(checkout(Path(storage.root), snapshot.digest).rglob("*.bin"))) == 300


def test_too_much_is_not_copied(storage, tmp_path):
    snapshot = take(tmp_path / "store", project(50) | {"data/train.bin": os.urandom(30_000_000)})
    with pytest.raises(CopyTooLarge) as caught:
        ship_snapshot(snapshot, storage, limit=10_000_000)
    assert (
        "data/train.bin (30.0 MB)" in caught.value.what
        and "--copy-limit 1GB" in caught.value.fix
        and storage.sent == 0
    )
    assert ship_snapshot(snapshot, storage, limit=10**9).blobs_sent == 53


def test_a_full_disk_half_way(own_sshd, storage, tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)], capture_output=True
    ).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        small = open_storage(str(place), SshShell("lab"), field="storage under [tool.fsdl_dev.targets.lab]")
        snapshot = take(tmp_path / "store", {f"data/{n}.bin": os.urandom(100_000) for n in range(250)})
        with pytest.raises(FsdlError) as caught:
            ship_snapshot(snapshot, small)
        assert (
            "disk at lab is full" in caught.value.what
            and "are left on" in caught.value.what
            and "storage under" in caught.value.fix
        )
        assert not list((place / "tmp").iterdir()) and not (place / "snapshots").exists()
        assert (
            len(list((place / "packs").iterdir())) == 1
        )  # what had arrived whole stays, and is not sent again
    finally:
        subprocess.run(["umount", str(place)], capture_output=True)


def test_the_runtime_runs_without_being_installed(storage, tmp_path):
    path = ship_runtime(storage)
    sent = storage.sent
    assert ship_runtime(storage) == path and storage.sent == sent > 0
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "runtime")
    program = "import fsdl_dev.worker.worker, fsdl_dev; print(fsdl_dev.__file__)"
    answer = storage.shell.run(
        ["env", f"PYTHONPATH={tmp_path / 'runtime'}", sys.executable, "-P", "-c", program]
    )
    assert answer.out.startswith(str(tmp_path / "runtime"))


def test_an_unreachable_host_is_told(own_sshd, storage, tmp_path):
    snapshot = take(tmp_path / "store", project(20))
    own_sshd.stop()
    with pytest.raises(Unreachable), with_patience(1):
        ship_snapshot(snapshot, storage)


def test_a_bucket_is_shipped_to_and_mirrored(bucket, tmp_path):
    from fsdl_dev.core.events import read_events
    from fsdl_dev.core.job import Job
    from fsdl_dev.core.rundir import create_run_dir
    from fsdl_dev.engines.remote.mirror import Mirror

    files = project(200) | {"large.bin": os.urandom(10_000_000), "medium.bin": os.urandom(500_000)}
    snapshot, storage = take(tmp_path / "store", files), open_storage("s3://runs/größe")
    assert (
        ship_snapshot(snapshot, storage).blobs_sent == 204
        and ship_snapshot(snapshot, storage).blobs_sent == 0
    )
    files["large.bin"] += b"x"
    assert ship_snapshot(take(tmp_path / "store", files), storage).blobs_sent == 1
    for path in storage.sizes([storage.root]):  # as a pod with the bucket mounted sees it
        storage.get(path, tmp_path / "mounted" / path.removeprefix(storage.root).lstrip("/"))
    assert arrived(take(tmp_path / "store", files), str(tmp_path / "mounted")) == files
    run = create_run_dir(tmp_path / "here", Job("script", "läuft"))
    log, lines = storage.join("runs", run.id, "events", "worker.jsonl"), b""
    for step in range(3):
        lines += b'{"t": 1764000000.5, "kind": "metric", "rank": 0, "step": %d}\n' % step
        storage.write(log, lines + b'{"t": 17640')
        assert Mirror(run, storage).pull() > 0
    assert [event["step"] for event in read_events(run.events)] == [0, 1, 2]
    storage.write(storage.join("runs", run.id, "checkpoints", "last.ckpt"), b"weights")
    Mirror(run, storage).fetch(["checkpoints/last.ckpt"])
    assert (run.checkpoints / "last.ckpt").read_bytes() == b"weights" and ship_runtime(storage).startswith(
        "s3://runs/größe/runtimes/"
    )
