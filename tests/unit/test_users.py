"""Several users in one project's folder, by real user numbers: root alone can be another user."""

import os
import shutil
import tempfile
import traceback
from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdl_dev.cli.main import main
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.job import Job
from fsdl_dev.core.rundir import create_run_dir
from fsdl_dev.core.settings import find_project, open_store, user_state
from fsdl_dev.records.find import history_checks

pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be other users"
)
ADA, BOB, TEAM = 64_001, 64_002, 64_000  # numbers that no user of a machine has


@pytest.fixture
def root(monkeypatch):
    """A project below a folder that everyone may enter; pytest's own is root's alone."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    for name in ("FSDL_STORE", "FSDL_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (folder / "work").mkdir()
    (folder / "work" / "pyproject.toml").touch()
    (folder / "work").chmod(0o2777)
    monkeypatch.chdir(folder / "work")
    fsdl("runs")  # what the commands import, while this process may still read it
    shutil.rmtree(folder / "work" / ".fsdl", ignore_errors=True)
    yield folder / "work"
    shutil.rmtree(folder)


def as_user(user: int, call) -> str:
    """What a call returns in a forked process of another user."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setresgid(TEAM, TEAM, TEAM)
            os.setresuid(user, user, user)
            os.umask(0o022)
            said = str(call())
        except BaseException:
            said = traceback.format_exc()
        os.write(write, said.encode()[:60_000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


def fsdl(*words: str) -> str:
    return CliRunner().invoke(main, list(words), catch_exceptions=False).output


def make_run() -> str:
    run = create_run_dir(open_store(find_project()), Job("script", "train.py", script="train.py"))
    for state in ("queued", "starting", "running", "succeeded"):
        run.set_state(run.writer("worker"), state, "example")
    return run.id


COMMANDS = (
    ("runs",),
    ("show", "last"),
    ("logs", "last"),
    ("gc", "-y"),
    ("rm", "-y", "last"),
    ("lineage", "last"),
)


@pytest.mark.parametrize("command", [*COMMANDS, ("history",)], ids=" ".join)
def test_another_users_store_is_said_with_the_way(root, command):
    as_user(ADA, make_run)

    def ask():
        if command != ("history",):
            return fsdl(*command)
        return history_checks(Job("script", "train.py", script="train.py"), find_project().store)

    said = as_user(BOB, ask)
    assert f"The run store belongs to {ADA} (mode " in said and f"you are {BOB}" in said, said
    if command != ("history",):
        assert "Traceback" not in said and "FSDL_STORE" in said and "group" in said, said


def test_after_sudo_the_owner_is_told_to_take_the_store_back(root):
    os.chown(root, ADA, TEAM)
    make_run()
    said = as_user(ADA, lambda: fsdl("runs"))
    assert (
        "belongs to root" in said and f"sudo chown -R {ADA} {root}/.fsdl" in said and "Traceback" not in said
    )


def test_one_run_of_root_in_ones_own_store_is_one_row(root):
    as_user(ADA, make_run)
    make_run()
    said = as_user(ADA, lambda: fsdl("runs"))
    assert "unreadable" in said and "succeeded" in said, said
    said = as_user(ADA, lambda: fsdl("runs", "--json"))  # a table is cut at the terminal's width
    assert "cannot be read: it belongs to root" in said, said


def test_a_group_works_in_one_store(root):
    (root / "pyproject.toml").write_text(f"[tool.fsdl_dev]\ngroup = {TEAM}\n")
    of_ada, of_bob = as_user(ADA, make_run), as_user(BOB, make_run)
    assert as_user(ADA, lambda: fsdl("runs")).count("succeeded") == 2
    said = as_user(BOB, lambda: fsdl("rm", "-y", of_ada))
    assert f"of {ADA}" in said and "[y/N]" in said and (root / ".fsdl" / "runs" / of_ada).is_dir(), said
    assert "deleted 1 folder" in as_user(BOB, lambda: fsdl("rm", "-y", of_bob))
    checkouts = root / ".fsdl" / "checkouts"
    for name, user in (("a" * 64, ADA), ("b" * 64, BOB)):
        (checkouts / name).mkdir()
        (checkouts / name / "train.py").touch()
        os.chown(checkouts / name, user, TEAM)
    said = as_user(BOB, lambda: fsdl("gc", "-y"))
    assert f"aaaaaaaaaaaa: it belongs to {ADA}" in said and "deleted 1 folder" in said, said
    assert [path.name[0] for path in checkouts.iterdir()] == ["a"]


@pytest.mark.parametrize("home", ["/", "/nonexistent", None])
def test_a_user_without_a_name_or_a_home_has_a_state_folder(root, home, monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    if home:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    folder = root / f"fsdl_dev-{ADA}"
    assert as_user(ADA, user_state) == str(folder) and folder.stat().st_mode & 0o777 == 0o700
    assert as_user(ADA, user_state) == str(folder)
    os.chown(folder, BOB, TEAM)
    assert "belongs to another user" in as_user(ADA, user_state)
    assert FsdlError.__name__ in as_user(ADA, user_state)
