"""Snapshots under the conditions that notebooks cannot show: other processes, full and read-only disks, other users."""

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.settings import Project, find_project
from fsdl_dev.snapshot.snapshot import checkout, load_snapshot
from fsdl_dev.snapshot.take import take_snapshot

TAKE = """
import sys
from fsdl_dev.core.settings import find_project
from fsdl_dev.snapshot.take import take_snapshot
from fsdl_dev.snapshot.snapshot import checkout
project = find_project(sys.argv[1])
sys.stdin.readline()
snapshot = take_snapshot(project)
print(snapshot.digest, checkout(project.store, snapshot.digest))
"""


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path) -> Path:
    """A repository with names of every kind, one commit old."""
    root = tmp_path / "größe lernen"
    for name in (
        "demo/__init__.py",
        "demo/größe.py",
        "with space/a b.txt",
        "new\nline.txt",
        "日本/語.md",
        "-dash",
        "quote'\".txt",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name!r}\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("demo/größe.py")
    git(root, "init")
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    return root


@pytest.fixture
def many(root) -> Path:
    """The same repository with 300 more files: a first snapshot of it puts them into a pack."""
    (root / "many").mkdir()
    for number in range(300):
        (root / "many" / f"{number}.txt").write_text(f"{number}\n" * 500)
    return root


def packs(project: Project) -> list[Path]:
    return sorted((project.store / "packs").glob("*"))


def contents(folder: Path) -> dict[str, tuple]:
    """What a folder holds: path -> kind, whether it runs, content."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if name.startswith(".git/") or path.is_dir() and not path.is_symlink():
            continue
        found[name] = (
            ("link", os.readlink(path))
            if path.is_symlink()
            else (bool(path.stat().st_mode & 0o100), path.read_bytes())
        )
    return found


def test_round_trip(root, tmp_path):
    project = find_project(root)
    snapshot = take_snapshot(project)
    assert snapshot.checks == ()
    assert (
        contents(snapshot.lay_out(tmp_path / "laid out"))
        == contents(checkout(project.store, snapshot.digest))
        == contents(root)
    )


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has file names that are no Unicode")
def test_name_that_is_no_unicode(root, tmp_path):
    with open(os.fsencode(root) + b"/caf\xe9.txt", "wb") as file:
        file.write(b"latin")
    project = find_project(root)
    first = take_snapshot(project)
    assert take_snapshot(project) == first == load_snapshot(project.store, first.digest)
    assert b"caf\xe9.txt" in os.listdir(os.fsencode(checkout(project.store, first.digest)))


def test_processes_that_take_at_once_agree(many):
    root = many
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TAKE, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    answers = {process.communicate(timeout=300)[0] for process in processes}
    assert len(answers) == 1 and all(process.returncode == 0 for process in processes)
    project = find_project(root)
    assert os.listdir(project.store / "tmp") == []
    assert (
        len(os.listdir(project.store / "snapshots"))
        == len(os.listdir(project.store / "checkouts"))
        == len(packs(project))
        == 1
    )
    assert contents(checkout(project.store, answers.pop().split()[0])) == contents(root)


def test_processes_that_store_different_things_at_once(many, tmp_path):
    """Two checkouts of a project with one store, which have most files in common: two packs, and each is whole."""
    copy = tmp_path / "a copy"
    shutil.copytree(many, copy, symlinks=True)
    for number in range(100):
        (copy / "many" / f"{number}.txt").write_text(f"other {number}\n")
    roots = (many, copy, many, copy)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TAKE, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for root in roots
    ]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=300)[0] for process in processes]
    project = find_project(many)
    for root, answer in zip(roots, answers):
        assert contents(checkout(project.store, answer.split()[0])) == contents(root)
    assert os.listdir(project.store / "tmp") == [] and packs(project)
    assert take_snapshot(project).stored == 0


def test_store_with_blobs_of_both_kinds(root, tmp_path):
    """A store from before there were packs, then a pack, then single files beside it; each found by a process
    that is new and by one that is not.
    """
    project = find_project(root)
    take_snapshot(project)
    assert packs(project) == []
    (root / "many").mkdir()
    for number in range(300):
        (root / "many" / f"{number}.txt").write_text(f"{number}\n")
    (root / "large.bin").write_bytes(os.urandom(200_000))
    for turn in range(3):
        (root / "many" / "0.txt").write_text(f"edited {turn}\n")
        answer = subprocess.run(
            [sys.executable, "-c", TAKE, str(root)], input="\n", capture_output=True, text=True, check=True
        ).stdout
        assert len(packs(project)) == 1
        snapshot = load_snapshot(project.store, answer.split()[0])
        assert (
            contents(snapshot.lay_out(tmp_path / f"turn {turn}"))
            == contents(checkout(project.store, snapshot.digest))
            == contents(root)
        )
        again = take_snapshot(project)
        assert again == snapshot and again.stored == 0
    assert (
        project.store
        / "blobs"
        / snapshot.files["large.bin"]["sha256"][:2]
        / snapshot.files["large.bin"]["sha256"]
    ).exists()


def test_damaged_pack_is_named_and_written_anew(many):
    project = find_project(many)
    snapshot = take_snapshot(project)
    [pack] = packs(project)
    whole = pack.read_bytes()
    place = whole.index(b"123\n123\n")
    for broken in (whole[:place] + b"x" + whole[place + 1 :], whole[:-1], b"{}\n" + whole, b""):
        pack.chmod(0o644)
        pack.write_bytes(broken)
        answer = subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys; from fsdl_dev.snapshot.snapshot import checkout; checkout(*sys.argv[1:])",
                str(project.store),
                snapshot.digest,
            ],
            capture_output=True,
            text=True,
        )
        print(answer.stderr[-400:])
        assert (
            answer.returncode
            and pack.name in answer.stderr
            and ("123.txt" in answer.stderr or len(broken) != len(whole))
        )
        with pytest.raises(FsdlError) as caught:
            checkout(project.store, snapshot.digest)
        assert caught.value.where == str(pack) and os.listdir(project.store / "tmp") == []
        if len(broken) == len(whole):
            pack.unlink()  # what the error says
        assert take_snapshot(project).stored == 309 and pack.read_bytes() == whole
    assert contents(checkout(project.store, snapshot.digest)) == contents(many)


def test_store_that_is_deleted_meanwhile(many):
    """The process still knows of packs that are gone."""
    project = find_project(many)
    snapshot = take_snapshot(project)
    shutil.rmtree(project.store)
    assert take_snapshot(project) == snapshot
    assert contents(checkout(project.store, snapshot.digest)) == contents(many)


def test_file_that_keeps_changing_is_never_torn(root):
    """A file whose two halves always agree is stored with halves that agree, or named."""
    target, stop = root / "busy.txt", threading.Event()

    def write():
        number = 0
        while not stop.is_set():
            number += 1
            target.write_text(f"{number}\n" * 2)

    target.write_text("0\n0\n")
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            try:
                snapshot = take_snapshot(find_project(root))
            except FsdlError as error:
                assert "busy.txt" in error.what and ".gitignore" in error.fix
                continue
            halves = (
                snapshot.store.joinpath(
                    "blobs", snapshot.files["busy.txt"]["sha256"][:2], snapshot.files["busy.txt"]["sha256"]
                )
                .read_text()
                .split()
            )
            assert len(set(halves)) <= 1
    finally:
        stop.set()
        writer.join()


def test_change_within_the_same_tick_is_seen(root):
    """Same size, same times: what git calls racy."""
    project, target = find_project(root), root / "demo" / "__init__.py"
    for number in range(30):
        target.write_text(f"x = {number:02d}\n")
        snapshot = take_snapshot(project)
        assert (
            checkout(project.store, snapshot.digest) / "demo" / "__init__.py"
        ).read_text() == f"x = {number:02d}\n"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 400 kB, where the tests run as root on Linux."""
    place = tmp_path / "small disk"
    place.mkdir()
    if (
        sys.platform != "linux"
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a small disk needs root on Linux")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_full_disk(root, small_disk, monkeypatch):
    monkeypatch.setenv("FSDL_STORE", str(small_disk / "store"))
    (root / "weights.bin").write_bytes(os.urandom(600_000))
    project = find_project(root)
    with pytest.raises(FsdlError) as caught:
        take_snapshot(project)
    print(caught.value)
    assert "full" in caught.value.what and "FSDL_STORE" in caught.value.fix
    assert os.listdir(project.store / "tmp") == [] and not (project.store / "snapshots").exists()
    (root / "weights.bin").unlink()
    assert take_snapshot(project).files  # what was stored before is whole and of use


def test_full_disk_while_packing(many, small_disk, monkeypatch):
    monkeypatch.setenv("FSDL_STORE", str(small_disk / "store"))
    (small_disk / "filler").write_bytes(b"\0" * 200_000)
    project = find_project(many)
    for _ in range(2):
        with pytest.raises(FsdlError, match="full"):
            take_snapshot(project)
        assert (
            os.listdir(project.store / "tmp") == []
            and packs(project) == []
            and not (project.store / "snapshots").exists()
        )
    (small_disk / "filler").unlink()
    shutil.rmtree(many / "many")
    assert take_snapshot(project).stored == 9


def test_full_disk_while_laying_out(root, small_disk, monkeypatch):
    monkeypatch.setenv("FSDL_STORE", str(small_disk / "store"))
    (root / "weights.bin").write_bytes(os.urandom(150_000))
    project = find_project(root)
    snapshot = take_snapshot(project)
    (small_disk / "filler").write_bytes(b"\0" * 60_000)
    with pytest.raises(FsdlError, match="full"):
        checkout(project.store, snapshot.digest)
    assert (
        not (project.store / "checkouts" / snapshot.digest).exists()
        and os.listdir(project.store / "tmp") == []
    )
    (small_disk / "filler").unlink()
    assert contents(checkout(project.store, snapshot.digest)) == contents(root)


def test_read_only_store(root, small_disk, monkeypatch):
    monkeypatch.setenv("FSDL_STORE", str(small_disk / "store"))
    project = find_project(root)
    snapshot = take_snapshot(project)
    checkout(project.store, snapshot.digest)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert (
        take_snapshot(project) == snapshot and checkout(project.store, snapshot.digest).is_dir()
    )  # nothing new to store
    (root / "demo" / "new.py").write_text("x = 1\n")
    with pytest.raises(FsdlError) as caught:
        take_snapshot(project)
    print(caught.value)
    assert "cannot be written" in caught.value.what and "FSDL_STORE" in caught.value.fix


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="another user is needed, whose rights count"
)
def test_unreadable_files_are_named(root, tmp_path):
    for name in ("demo/größe.py", "run.sh"):
        (root / name).chmod(0)
    store = tmp_path / "nobody's store"
    store.mkdir()
    os.chown(store, 65534, 65534)
    source = (
        "import os, sys; sys.path.insert(0, sys.argv[2]); from fsdl_dev.core.settings import Project; from"
        " pathlib import Path\n"
    )
    source += "from fsdl_dev.snapshot.take import take_snapshot; os.setegid(65534); os.seteuid(65534)\n"
    source += "from fsdl_dev.core.errors import FsdlError\n"
    source += (
        "try: take_snapshot(Project(Path(sys.argv[1]), 'x', config={}))\nexcept FsdlError as error:"
        " print(error)"
    )
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o001:
            folder.chmod(
                folder.stat().st_mode | 0o055
            )  # pytest's own folders are closed to others, and closed again by the next session
    environment = {
        **os.environ,
        "FSDL_STORE": str(store),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    done = subprocess.run(
        [sys.executable, "-c", source, str(root), str(Path(__file__).parents[2])],
        capture_output=True,
        text=True,
        env=environment,
    )
    print(done.stdout, done.stderr)
    assert (
        done.stdout.startswith("2 files cannot be read")
        and "demo/größe.py" in done.stdout
        and "run.sh" in done.stdout
        and "chmod" in done.stdout
    )


def test_without_git_and_with_a_repository_git_distrusts(root, monkeypatch, tmp_path):
    project = find_project(root)
    by_git = take_snapshot(project)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    without = take_snapshot(project)
    assert without.files == by_git.files and without.manifest["git"] is None
    assert [(check.verdict, "git is not installed" in check.message) for check in without.checks] == [
        ("warn", True)
    ]


def test_commit_branch_and_store_do_not_matter_but_content_does(root, tmp_path, monkeypatch):
    project = find_project(root)
    first = take_snapshot(project)
    git(root, "checkout", "-b", "another-branch")
    os.utime(root / "run.sh")
    monkeypatch.setenv("FSDL_STORE", str(tmp_path / "elsewhere"))
    assert take_snapshot(project) == first
    copy = tmp_path / "a copy elsewhere"
    shutil.copytree(root, copy, symlinks=True)
    assert take_snapshot(replace(find_project(copy), name=project.name)) == first
    (root / "run.sh").chmod(0o644)
    assert take_snapshot(project) != first


def test_changed_notebook_outputs_change_nothing(root):
    def notebook(outputs, count, source="x = 1"):
        cell = {
            "cell_type": "code",
            "id": "a",
            "metadata": {},
            "source": source,
            "outputs": outputs,
            "execution_count": count,
        }
        return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})

    project, path = find_project(root), root / "größe.ipynb"
    path.write_text(notebook([], None))
    git(root, "add", ".")
    git(root, "commit", "-m", "notebook")
    first = take_snapshot(project)
    path.write_text(notebook([{"output_type": "stream", "name": "stdout", "text": ["a card"]}], 3))
    assert take_snapshot(project) == first
    path.write_text(notebook([], None, "x = 2"))
    assert "x = 2" in take_snapshot(project).diff


def test_diff_applies(root, tmp_path):
    """The commit and the patch together give the snapshot back."""
    (root / "demo" / "größe.py").write_text("changed = True\n")
    (root / "run.sh").unlink()
    (root / "demo" / "__init__.py").write_bytes(b"\x00binary\xff")
    snapshot = take_snapshot(find_project(root))
    git(tmp_path, "clone", "-q", str(root), "clone")
    digest = snapshot.manifest["git"]["diff"]
    patch = snapshot.store / "blobs" / digest[:2] / digest
    git(tmp_path / "clone", "apply", str(patch))
    assert contents(tmp_path / "clone") == contents(snapshot.lay_out(tmp_path / "laid out"))


def test_checkout_is_read_only_but_takes_bytecode(root):
    project = find_project(root)
    folder = checkout(project.store, take_snapshot(project).digest)
    assert all(not path.stat().st_mode & 0o222 for path in folder.rglob("*") if path.is_file())
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", "import demo.größe"], cwd=folder, check=True, env=environment)
    assert any(folder.rglob("*.pyc"))
    assert checkout(project.store, folder.name) == folder


def test_store_inside_the_project_is_not_part_of_it(root, monkeypatch):
    monkeypatch.delenv("FSDL_STORE")
    project = find_project(root)
    first = take_snapshot(project)
    assert take_snapshot(project) == first and not any(name.startswith(".fsdl") for name in first.files)
    assert stat.S_ISDIR((root / ".fsdl" / "blobs").stat().st_mode)


def test_plain_folder(tmp_path):
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    snapshot = take_snapshot(Project(folder, "plain"))
    assert list(snapshot.files) == ["train.py"] and snapshot.checks[0].fix == "git init"


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="a folder of another user is needed")
def test_folder_of_another_user(root, monkeypatch):
    """Git refuses to read it, as in many containers: the snapshot is taken by a walk, and the fix is git's own."""
    by_git = take_snapshot(find_project(root))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for path in (root, root / ".git"):
        os.chown(path, 65534, 65534)
    walked = take_snapshot(find_project(root))
    print(walked.checks[0].text())
    assert walked.files == by_git.files and "safe.directory" in walked.checks[0].fix


def test_a_repository_that_git_cannot_read_is_a_warning(root, tmp_path):
    def said(folder: Path) -> str:
        snapshot = take_snapshot(find_project(folder))
        assert "run.sh" in snapshot.files
        (check,) = snapshot.checks
        return f"{check.message} {check.fix}"

    shared = tmp_path / "shared"
    git(tmp_path, "clone", "--shared", str(root), str(shared))
    git(root, "config", "filter.gone.clean", "program-that-is-gone")
    git(root, "config", "filter.gone.required", "true")
    (root / ".gitattributes").write_text("*.sh filter=gone\n")
    (root / "run.sh").write_text("#!/bin/sh\ntrue\n")
    assert "clean filter 'gone' failed" in said(root) and "no diff. install the filter's" in said(root)
    (root / ".git/index").write_bytes(b"junk" * 20)
    assert "git does not answer (index file corrupt)" in said(root) and "rm .git/index" in said(root)
    shutil.move(root, tmp_path / "gone")
    assert "git cannot say what changed" in said(shared) and "--shared" in said(shared)
