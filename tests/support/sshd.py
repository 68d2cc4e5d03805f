"""A real sshd on this machine, with keys of its own: what the tests of the SSH shell and of everything above it
talk to.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ports import free_port

WHILE_TESTED = f"while kill -0 {os.getpid()} 2>/dev/null; do sleep 1; done"  # for sh: ends with these tests
SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")


@dataclass
class Sshd:
    """A running sshd, and the client configuration that reaches it."""

    host: str  # the alias to give to ssh
    config: Path  # for ssh -F, FSDL_SSH_CONFIG
    folder: Path
    command: list[str]
    address: str
    port: int
    options: list[str] = field(default_factory=list)
    process: subprocess.Popen | None = None
    prefix: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def home(self) -> Path:
        """The home folder there: never this user's own, whose start files are not the tests' and stay as they are."""
        return self.folder / f"home_{self.host}"

    def start(self) -> "Sshd":
        """Start it (again), and wait until it listens."""
        log = open(self.folder / "sshd.log", "ab")
        self.process = subprocess.Popen(
            [*self.prefix, *self.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            probe = subprocess.run(
                [*self.prefix, "bash", "-c", f"exec 3<>/dev/tcp/{self.address}/{self.port}"],
                capture_output=True,
                timeout=60,
            )
            if probe.returncode == 0:
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"sshd did not start: {(self.folder / 'sshd.log').read_text()}")

    def stop(self) -> None:
        """End it and every connection it serves."""
        if self.process is None:
            return
        self.cut()
        for end in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, end)
                self.process.wait(30)
                break
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        self.process = None

    def target(self, storage: Path) -> str:
        """A project's table of the target `lab`: this host, with its storage in a folder."""
        return (
            f'[tool.fsdl_dev.targets.lab]\nkind = "ssh"\nhost = "{self.host}"\nstorage = "{storage}"\npython'
            f' = "{sys.executable}"\n'
        )

    def connections(self) -> list[int]:
        """Process ids of the sshd processes that serve a connection now, one for each connection."""
        return self._children(self.pid)

    def cut(self) -> None:
        """Cut every connection, as a network would: sshd itself stays.

        A connection has a second process that holds its socket too, except where root logs in.
        """
        serving = self.connections()
        for pid in [*serving, *(second for first in serving for second in self._children(first, "sshd"))]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _children(self, parent: int, name: str = "") -> list[int]:
        """Process ids of a process's children, of one program where it is named."""
        listed = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True).stdout
        rows = [line.split(None, 2) for line in listed.splitlines()]
        return [int(pid) for pid, of, program in rows if int(of) == parent and program.startswith(name)]


def make_key(path: Path) -> Path:
    """A new key pair without a passphrase."""
    if not path.exists():
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)], check=True
        )
    return path


def start_sshd(
    folder: Path,
    port: int = 0,
    address: str = "127.0.0.1",
    netns: str | None = None,
    host: str = "lab",
    options: tuple[str, ...] = (),
    alias_config: Path | None = None,
    environment: dict[str, object] | None = None,
) -> Sshd:
    """Start an sshd that lets this user in by a key of its own; `config` knows it under the alias `host`.

    netns: the network namespace to run it in. alias_config: a client configuration to add the alias to, so that
    one file knows several hosts. environment: what its sessions have; HOME is a folder of its own. Skips where
    no sshd is installed.
    """
    if SSHD is None:
        pytest.skip("no sshd here (Debian: apt-get install openssh-server)")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(parents=True, exist_ok=True)
    shared = alias_config.parent if alias_config else folder
    home = folder / f"home_{host}"
    home.mkdir(exist_ok=True)
    environment = {"HOME": home, **(environment or {})}
    host_key, client_key = make_key(folder / f"host_{host}"), make_key(shared / "client")
    authorized = folder / "authorized_keys"
    authorized.write_text((shared / "client.pub").read_text())
    port = port or free_port(address if netns is None else "127.0.0.1")
    settings = {
        "Port": port,
        "ListenAddress": address,
        "HostKey": host_key,
        "AuthorizedKeysFile": authorized,
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "UsePAM": "no",
        "StrictModes": "no",
        "PidFile": "none",
        "Subsystem": "sftp internal-sftp",
        "PermitRootLogin": "yes",
        "MaxStartups": "100",
        "SetEnv": " ".join(f'"{name}={value}"' for name, value in environment.items()),
    }
    command = [
        SSHD,
        "-D",
        "-e",
        "-f",
        "/dev/null",
        *options,
        *(f"-o{key}={value}" for key, value in settings.items()),
    ]
    known = shared / "known_hosts"
    kind, key = host_key.with_suffix(".pub").read_text().split()[:2]
    with open(known, "a") as file:
        file.write(f"[{address}]:{port} {kind} {key}\n")
    config = alias_config or folder / "ssh_config"
    with open(config, "a") as file:
        file.write(
            f"Host {host}\n  HostName {address}\n  Port {port}\n  IdentityFile {client_key}\n  IdentitiesOnly"
            f" yes\n  UserKnownHostsFile {known}\n  GlobalKnownHostsFile /dev/null\n  HashKnownHosts no\n\n"
        )
    prefix = ["ip", "netns", "exec", netns] if netns else []
    return Sshd(host, config, folder, command, address, port, list(options), prefix=prefix).start()


@contextmanager
def reached_sshd(
    folder: Path, patch: pytest.MonkeyPatch, login: str = "", options: tuple[str, ...] = ()
) -> Iterator[Sshd]:
    """An sshd that this process reaches as `lab` until the block ends.

    login: a line of sh that stands in for the login shell, which has the command in SSH_ORIGINAL_COMMAND.
    """
    from fsdl_dev.engines.transport.ssh import SshShell

    if login:
        program = Path(folder).with_name("login")
        program.write_text(f"#!/bin/sh\n{login}\n")
        program.chmod(0o755)
        options = (*options, f"-oForceCommand={program}")
    server = start_sshd(folder, options=options)
    patch.setenv("FSDL_SSH_CONFIG", str(server.config))
    try:
        yield server
    finally:
        SshShell("lab").disconnect()
        server.stop()
