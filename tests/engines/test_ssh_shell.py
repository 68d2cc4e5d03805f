"""The SSH shell against a real sshd on loopback: what it runs, what it survives, and what it says when it does
not get through.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from following import until
from ports import free_port
from sshd import WHILE_TESTED, make_key, reached_sshd

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.engines.transport.shell import Answer, ShellFailed, Unreachable, with_patience
from fsdl_dev.engines.transport.ssh import SshShell, control_folder


def masters(server) -> list[int]:
    """Process ids of the shared connections to a server, and to no other: tests that run beside these have
    their own in the same folder.
    """
    asked = subprocess.run(
        [*SshShell(server.host).command, "-G", server.host], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    path = next(line.split(" ", 1)[1] for line in asked if line.startswith("controlpath "))
    found = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True).stdout.splitlines()
    return [int(line.split()[0]) for line in found if "ssh: " in line and "[mux]" in line and path in line]


def test_commands(shell, sshd):
    assert shell.run("echo ü; echo oops >&2; exit 3", check=False) == Answer(3, "ü\n", "oops\n")
    assert (
        shell.run(["printf", "%s|", "größe 'x'", "$HOME", "a\nb", "!x", "-n", ""]).out
        == "größe 'x'|$HOME|a\nb|!x|-n||"
    )
    assert shell.run("cat", input=bytes(range(256)) * 1000, binary=True).out == bytes(range(256)) * 1000
    assert shell.run("cat", input="ü").out == "ü" and shell.run("cat").out == ""
    assert shell.run("printf 'no line end'").out == "no line end"
    assert (
        shell.run("cd /tmp\nf() { echo $1; }\nf 'two lines'\ncat <<X\nhere $((1 + 1))\nX\n").out
        == "two lines\nhere 2\n"
    )
    assert shell.run("# " + "x" * 200_000 + "\necho long").out == "long\n"
    assert shell.home() == str(sshd.home)


def test_statuses_are_the_commands_own(shell):
    """255 is what ssh says when it fails itself: here the command says it."""
    assert shell.run("exit 255", check=False).status == 255
    assert shell.run("kill -9 $(exec sh -c 'echo $PPID')", check=False).status == 137
    with pytest.raises(ShellFailed) as caught:
        shell.run(["ls", "/no such folder"])
    assert (
        caught.value.answer.status == 2
        and "No such file" in caught.value.what
        and caught.value.where.startswith("lab: ls")
    )
    assert shell.run("echo still here").out == "still here\n"


@pytest.mark.parametrize("login", ["bash", "zsh", "fish", "csh", "silent"])
def test_login_shells(login, tmp_path, monkeypatch):
    """Start files that print, and login shells that are not POSIX, stood in for by a forced command that does
    as sshd does.
    """
    if login in ("zsh", "fish", "csh") and not shutil.which(login):
        pytest.skip(f"no {login} here")
    talk = "" if login == "silent" else "echo 'Welcome to lab!'; echo 'motd' >&2; "
    program = "sh" if login == "silent" else shutil.which(login)
    with reached_sshd(
        tmp_path / "sshd", monkeypatch, login=f'{talk}exec {program} -c "$SSH_ORIGINAL_COMMAND"'
    ):
        shell = SshShell("lab")
        assert shell.run(
            "echo $((1 + 1)); cat; exit 4", input=b"\xff!\n", check=False, binary=True
        ) == Answer(4, b"2\n\xff!\n", "")
        assert shell.run(["echo", "it's", "a \\n b", "!!"]).out.startswith("it's a ")


def test_a_closed_login_is_told(tmp_path, monkeypatch):
    with reached_sshd(
        tmp_path / "sshd",
        monkeypatch,
        options=("-oForceCommand=echo This account is currently not available.; exit 1",),
    ):
        with pytest.raises(Unreachable) as caught:
            with with_patience(1):
                SshShell("lab").run("true", retry=True)
        assert (
            caught.value.kind == "no shell"
            and "currently not available" in caught.value.what
            and not caught.value.passing
        )


def test_one_connection_serves_all_processes(own_sshd):
    SshShell("lab").run("true")
    until(lambda: len(own_sshd.connections()) == 1)  # what asked whether sshd listens is gone
    program = (
        "import sys; from fsdl_dev.engines.transport.ssh import SshShell; print(SshShell('lab').run('echo"
        " $SSH_CONNECTION').out)"
    )
    before = SshShell("lab").run("echo $SSH_CONNECTION").out
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert other.stdout.strip() == before.strip() and len(own_sshd.connections()) == 1
    assert control_folder().stat().st_mode & 0o077 == 0


def test_many_at_once(own_sshd):
    """More than sshd allows on one connection, from a cold start."""
    shell = SshShell("lab")
    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda n: shell.run(f"sleep 0.1; echo {n}").out, range(60)))
    assert answers == [f"{n}\n" for n in range(60)]


def test_a_killed_master_is_replaced(own_sshd):
    shell = SshShell("lab")
    for _ in range(2):
        shell.run("true")
        for pid in masters(own_sshd):
            os.kill(pid, signal.SIGKILL)
        assert shell.run("echo again").out == "again\n"  # even without retry: nothing had begun


def test_a_hanging_master_is_replaced(own_sshd):
    shell = SshShell("lab")
    shell.run("true")
    pids = masters(own_sshd)
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert shell.run("echo again", retry=True, timeout=10).out == "again\n"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def test_a_cut_in_the_middle_is_no_status(own_sshd, tmp_path):
    shell = SshShell("lab")
    shell.run("true")

    def cut() -> None:
        until((tmp_path / "begun").exists)
        time.sleep(15)  # until what it has said is here, on a busy machine too
        own_sshd.cut()

    threading.Thread(target=cut).start()
    with pytest.raises(Unreachable) as caught:
        shell.run(f"echo begun; touch '{tmp_path}/begun'; {WHILE_TESTED}", timeout=600)
    assert caught.value.kind == "lost" and caught.value.passing and caught.value.began is True


@pytest.mark.slow
def test_retry_rides_over_a_host_that_is_away(own_sshd, tmp_path):
    """The server is gone for some seconds; a command that may be run again does not notice, another says so at once."""
    shell = SshShell("lab")
    shell.run("true")
    own_sshd.stop()
    start = time.monotonic()
    with pytest.raises(Unreachable) as caught:
        shell.run("true")
    assert caught.value.began is not True and caught.value.passing
    timer = threading.Timer(8, own_sshd.start)
    timer.start()
    try:
        assert shell.run("echo back", retry=True).out == "back\n"
    finally:
        timer.join()
    assert time.monotonic() - start > 7


def test_patience_ends(own_sshd):
    own_sshd.stop()
    with pytest.raises(Unreachable) as caught:
        with with_patience(2):
            SshShell("lab").run("true", retry=True)
    assert caught.value.kind == "refused"
    assert "no SSH server answers" in caught.value.what and caught.value.fix.startswith("ssh lab")


def test_a_refused_key(own_sshd, tmp_path):
    (own_sshd.folder / "authorized_keys").write_text(
        (make_key(tmp_path / "other").with_suffix(".pub")).read_text()
    )
    with pytest.raises(Unreachable) as caught:
        SshShell("lab", field="host under [tool.fsdl_dev.targets.lab]").run("true", retry=True)
    error = caught.value
    assert error.kind == "key refused" and not error.passing and "ssh-copy-id lab" in error.fix
    assert error.where == "host under [tool.fsdl_dev.targets.lab] (ssh lab)"


def test_a_second_factor_is_told_with_the_command_that_opens_the_connection(tmp_path, monkeypatch):
    with reached_sshd(
        tmp_path / "sshd",
        monkeypatch,
        options=(
            "-oAuthenticationMethods=publickey,keyboard-interactive",
            "-oKbdInteractiveAuthentication=yes",
        ),
    ):
        with pytest.raises(Unreachable) as caught:
            SshShell("lab").run("true")
        error = caught.value
        assert (
            error.kind == "second factor"
            and "-fN lab" in error.fix
            and "ControlPath" in error.fix
            and "BatchMode" not in error.fix
        )


def test_a_changed_host_key_is_refused(own_sshd):
    known = own_sshd.config.parent / "known_hosts"
    other = make_key(own_sshd.folder / "other_host").with_suffix(".pub").read_text().split()
    known.write_text(f"[127.0.0.1]:{own_sshd.port} {other[0]} {other[1]}\n")
    with pytest.raises(Unreachable) as caught:
        SshShell("lab").run("true", retry=True)
    error = caught.value
    assert error.kind == "host key changed" and not error.passing
    assert (
        "administrator" in error.fix
        and "ssh-keygen -f" in error.fix
        and f"[127.0.0.1]:{own_sshd.port}" in error.fix
    )
    command = error.fix.split("only then: ")[1]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)  # the line is a command that works
    with pytest.raises(Unreachable) as caught:
        SshShell("lab").run("true")
    assert caught.value.kind == "unknown host key", "and after it the key is unknown, not accepted"
    assert caught.value.fix.startswith("ssh lab ")


def test_hosts_that_are_not_there(tmp_path, monkeypatch):
    config = tmp_path / "config"
    config.write_text(
        f"Host closed\n  HostName 127.0.0.1\n  Port {free_port()}\n\nHost nowhere\n  HostName"
        " no-such-host.invalid\n"
    )
    monkeypatch.setenv("FSDL_SSH_CONFIG", str(config))
    for host, kinds in {"closed": ("refused",), "nowhere": ("unresolvable", "no network")}.items():
        with pytest.raises(Unreachable) as caught:
            SshShell(host).run("true")
        assert caught.value.kind in kinds and caught.value.began is False and host in caught.value.what


def test_a_host_that_does_not_answer(tmp_path, monkeypatch):
    """A port that takes connections and says nothing."""
    import socket

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        config = tmp_path / "config"
        config.write_text(f"Host deaf\n  HostName 127.0.0.1\n  Port {deaf.getsockname()[1]}\n")
        monkeypatch.setenv("FSDL_SSH_CONFIG", str(config))
        with pytest.raises(Unreachable) as caught:
            SshShell("deaf").run("true", timeout=2)
        assert caught.value.kind == "timed out" and caught.value.passing


def test_a_broken_configuration_is_told(tmp_path, monkeypatch):
    config = tmp_path / "config"
    config.write_text("Host lab\n  NoSuchOption yes\n")
    monkeypatch.setenv("FSDL_SSH_CONFIG", str(config))
    with pytest.raises(Unreachable) as caught:
        SshShell("lab").run("true")
    assert caught.value.kind == "configuration" and "NoSuchOption".lower() in caught.value.what.lower()


def test_the_users_own_shared_connection_is_used(own_sshd, tmp_path):
    path = control_folder() / f"own{os.getpid()}"
    own_sshd.config.write_text(
        own_sshd.config.read_text().replace(
            "Host lab\n", f"Host lab\n  ControlMaster auto\n  ControlPath {path}\n  ControlPersist 60\n"
        )
    )
    shell = SshShell("lab")
    shell.run("true")
    assert path.exists() and not any("ControlPath" in word for word in shell.command)
    shell.disconnect()


def test_a_long_command_is_ended_in_time(shell):
    shell.run("true")  # the connection is there
    with pytest.raises(Unreachable) as caught:
        shell.run(WHILE_TESTED, timeout=10)
    assert caught.value.began is True and not caught.value.passing
    assert shell.run("echo fine").out == "fine\n"


def test_background_jobs_do_not_hold_the_answer(shell, tmp_path):
    answer = shell.run(
        f"nohup sh -c 'while [ ! -e {tmp_path}/enough ]; do sleep 0.1; done; echo done > {tmp_path}/mark'"
        " >/dev/null 2>&1 </dev/null & echo started"
    )
    assert answer.out == "started\n" and not (tmp_path / "mark").exists()
    (tmp_path / "enough").touch()
    until((tmp_path / "mark").exists)


def test_the_folder_for_connections_must_be_ones_own(tmp_path, monkeypatch):
    place = tmp_path.parent / "r"
    place.mkdir(exist_ok=True)
    if len(str(place)) >= 40:
        place = Path(f"/tmp/fsdl-test-{os.getpid()}")
        place.mkdir()
    try:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
        assert control_folder() == place / "fsdl_dev"
        (place / "fsdl_dev").chmod(0o777)
        with pytest.raises(FsdlError) as caught:
            control_folder()
        assert "can enter the folder" in caught.value.what
    finally:
        shutil.rmtree(place)
