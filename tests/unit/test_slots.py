"""Tickets for slots among users who do not trust each other: a second user of this machine tries what it can."""

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.worker import slots
from fsdl_dev.worker.slots import lease, slots_table

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root can be another user"
)
POOL = "local/gpu"


@pytest.fixture
def place(monkeypatch) -> Iterator[Path]:
    """A place like /var/tmp/fsdl_dev: for everybody, on a path that everybody can enter."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        there = Path(folder, "fsdl_dev")
        there.mkdir()
        there.chmod(0o1777)
        monkeypatch.setenv("FSDL_SLOTS_FOLDER", str(there))
        yield there


class Other:
    """A process of the user `nobody`.

    What it imports was loaded before it became nobody, who need not be able to read this project.
    """

    def __init__(self, program: str, *args: str):
        become = """
            import os, sys
            from fsdl_dev.worker.slots import _locked, _listed, lease, slots_table
            import fsdl_dev.worker.processes, pwd, fcntl, psutil
            user = pwd.getpwnam("nobody")
            os.setgroups([]); os.setgid(user.pw_gid); os.setuid(user.pw_uid)
            """
        program = textwrap.dedent(become) + textwrap.dedent(program)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, *args],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            start_new_session=True,
        )

    def says(self) -> str:
        return self.process.stdout.readline().rstrip("\n")

    def __enter__(self) -> "Other":
        return self

    def __exit__(self, *_) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(120)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.stdout.close()


HOLD = f"""
def say(position, ahead):
    print("waits", position, *ahead, flush=True)

with lease({POOL!r}, [0, 1], int(sys.argv[1]), "theirs", on_wait=say) as held:
    print("holds", *held, flush=True)
    sys.stdin.read()
"""


def test_users_queue_together_and_know_each_other(place):
    ours = ExitStack()
    ours.enter_context(lease(POOL, [0, 1], 1, "ours"))
    with ours, Other(HOLD, "2") as other:
        assert other.says() == "waits 1 ours"
        assert [(row.user, row.slots, row.alive) for row in slots_table(POOL)] == [
            ("root", (0,), True),
            ("nobody", None, True),
        ]
        ours.close()
        assert other.says() == "holds 0 1"


def test_another_user_s_ticket_cannot_be_removed_changed_or_forged(place):
    attempts = """
        from pathlib import Path
        folder = Path(sys.argv[1])
        def tries(name, what):
            try:
                what()
                print("did", name, flush=True)
            except PermissionError:
                pass
        for path in [*folder.iterdir()]:
            tries(f"unlink {path}", path.unlink)
            tries(f"rename {path}", lambda: path.rename(folder / "gone"))
            tries(f"replace {path}", lambda: (folder / "own").touch() or (folder / "own").replace(path))
            tries(f"write {path}", lambda: path.write_text("{}"))
            tries(f"chmod {path}", lambda: path.chmod(0o666))
            tries(f"times {path}", lambda: os.utime(path, (0, 0)))
        tries("the folder", lambda: folder.rename(folder.with_name("gone")))
        tries("rmdir", folder.rmdir) if not any(folder.iterdir()) else None
        ticket = next(path for path in folder.iterdir() if ".holds." in path.name)
        with open(ticket) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                print("did lock", flush=True)
            except BlockingIOError:
                pass
        own = folder / "000000000.holds.forged"  # a ticket in root's name, of a process that lives
        own.write_text(ticket.read_text().replace("ours", "forged"))
        print("over", flush=True)
        sys.stdin.read()
        """
    with lease(POOL, [0, 1], 1, "ours") as held:
        folder = slots._folder(POOL)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o1777 and {
            stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()
        } == {0o644}
        before = {path.name: path.read_text() for path in folder.iterdir()}
        with Other(attempts, str(folder)) as other:
            assert other.says() == "over"
            assert {path.name: path.read_text() for path in folder.iterdir() if path.name in before} == before
            rows = {row.run: (row.user, row.slots, row.alive) for row in slots_table(POOL)}
            assert rows["ours"] == ("root", held, True)
            assert (
                rows["forged"][0] == "nobody" and rows["forged"][2] is False
            )  # the file's owner counts, and nobody keeps it locked
        with lease(POOL, [0, 1], 1, "next") as following:  # what was forged holds nothing
            assert set(following) | set(held) == {0, 1}


def test_a_ticket_of_a_killed_user_is_passed_over(place):
    """Nobody but its user, and root, may remove it."""
    waits = f"""
        with lease({POOL!r}, [0, 1], 1, "second") as held:
            print("holds", *held, flush=True)
            sys.stdin.read()
        """
    holder = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            (
                f"import sys\nfrom fsdl_dev.worker.slots import lease\nwith lease({POOL!r}, [0, 1], 2,"
                " 'first'):\n    print('up', flush=True)\n    sys.stdin.read()"
            ),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "up\n"
    with Other(waits) as other:
        holder.kill()
        holder.wait(60)
        assert other.says() == "holds 0"
        assert [(row.run, row.alive) for row in slots_table(POOL)] == [
            ("first", False),
            ("second", True),
        ]
    holder.stdin.close()
    holder.stdout.close()
    with lease(POOL, [0, 1], 2, "third"):  # root finds it and tidies up
        assert [row.run for row in slots_table(POOL)] == ["third"]


def test_somebody_who_keeps_the_lock_is_named_by_a_command(place):
    with Other(
        "from pathlib import Path\nfile = open(sys.argv[1])\nfcntl.flock(file,"
        " fcntl.LOCK_EX)\nprint('locked', flush=True)\nsys.stdin.read()",
        str(slots._folder(POOL) / "lock"),
    ) as other:  # noqa: F541
        assert other.says() == "locked"
        with (
            pytest.raises(FsdlError, match="held the lock") as told,
            slots._locked(slots._folder(POOL), patience=0.2),
        ):
            pass
        assert told.value.fix.startswith("fuser ")


def test_rubbish_in_the_folder_holds_up_nobody(place):
    folder = slots._folder(POOL)
    rubbish = {
        "000000000.waits.a": "",
        "000000001.holds.b": "[1, 2",
        "000000002.waits.c": json.dumps({"slots": 7, "owner": None}),
        "²²²²²²²²².waits.d": "{}",
        "1e9.holds.e": "{}",
        "1" * 40 + ".holds.f": "{}",
    }
    with Other(
        "import json\nfrom pathlib import Path\nfor name, text in json.loads(sys.argv[1]).items():\n   "
        " Path(sys.argv[2],"
        " name).write_text(text)\nos.mkfifo(f'{sys.argv[2]}/000000003.waits.g')\nos.symlink('/etc/passwd',"
        " f'{sys.argv[2]}/000000004.waits.h')\nprint('made', flush=True)",
        json.dumps(rubbish),
        str(folder),
    ) as other:
        assert other.says() == "made"
    with lease(POOL, [0, 1], 2, "ours") as held:
        assert held == (0, 1)
        assert [row.run for row in slots_table(POOL)] == ["ours"]
