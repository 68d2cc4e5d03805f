"""Machines for tests: each a network namespace with its own sshd, host name, home folders, processes, boot id
and /tmp.

They share the read-only rest of this machine (the interpreter, the system), and nothing that is written. One
bridge joins them. A host can be switched off, started again (with a new boot id, as after a restart) and
unplugged. All of it ends with the `with` block, by process id, and with the test process if that is killed.
Without the right to make namespaces `machines` starts plain sshds on 127.0.0.1, 127.0.0.2, ... as this user
(`Machines.real` is False, `why` says why): tests that need more skip with that reason.

with machines(folder, ["gpu1", "gpu2"]) as net: net.environment() # FSDL_SSH_CONFIG and the private folder of
sockets net["gpu1"].ssh("hostname")
"""

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

USERS = {"ann": 61001, "bob": 61002}  # on every real host, beside root; both in the group `lab`
LAB = 61000
SSHD = "/usr/sbin/sshd"
ROOT = Path(__file__).resolve().parents[2]  # the checkout, whose code and environment the tests run


def _run(*words: str, check: bool = True) -> str:
    done = subprocess.run(words, text=True, capture_output=True, timeout=180)
    assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


def why_no_namespaces() -> str:
    "Why this machine cannot make hosts of namespaces; empty where it can."
    if sys.platform != "linux" or not shutil.which("ip") or not shutil.which("unshare"):
        return "no `ip` or `unshare` here (Debian: apt-get install iproute2 util-linux)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"fsdl{os.getpid()}p"
    tried = subprocess.run(
        f"ip link add {name} type bridge && ip link del {name} && unshare --mount --pid --uts --net --fork"
        " true",
        shell=True,
        capture_output=True,
        text=True,
        timeout=180,
    )
    return "" if tried.returncode == 0 else f"namespaces cannot be made: {tried.stderr.strip()[:200]}"


def _sweep() -> None:
    "Remove the namespaces and bridges of test processes that are gone."
    for line in _run("ip", "netns", "list", check=False).split("\n"):
        name = line.split(" ")[0]
        if (
            name.startswith("fsdl-")
            and name.split("-")[1].isdigit()
            and not os.path.exists(f"/proc/{name.split('-')[1]}")
        ):
            _run("ip", "netns", "del", name, check=False)
    for link in json.loads(_run("ip", "-j", "link", "show", "type", "bridge", check=False) or "[]"):
        name = link["ifname"]
        owner = name.removeprefix("fsb").rstrip("abcdefghijklmnopqrstuvwxyz")
        if name.startswith("fsb") and owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            _change_addresses("ip", "link", "del", name, check=False)


def _change_addresses(*words: str, check: bool = True) -> None:
    "Add or remove an address of this machine, while no browser is open."
    from network import changed_addresses  # not above: a host's first process runs this file alone

    with changed_addresses():
        _run(*words, check=check)


def _free_subnet() -> str:
    "Three numbers of a network that nobody here uses."
    taken = _run("ip", "-o", "-4", "addr")
    for number in range(os.getpid() % 200, 400):
        prefix = f"10.{200 + number // 250}.{number % 250}"
        if f" {prefix}." not in taken:
            return prefix
    raise AssertionError("no free network")


class Host:
    "One machine that can be logged in to."

    def __init__(self, net: "Machines", name: str, address: str, options: dict):
        self.net, self.name, self.address, self.options = net, name, address, options
        self.folder = net.folder / name
        self.port, self.process, self.boots = 22, None, 0
        for part in ("root", "home/ann", "home/bob", "var"):
            (self.folder / part).mkdir(parents=True)

    @property
    def home(self) -> Path:
        "The home folder of the user that `ssh NAME` logs in as, as this machine sees it."
        return Path(self.options.get("home", self.folder / "root"))

    def ssh(self, command: str, user: str = "", check: bool = True, **more) -> subprocess.CompletedProcess:
        "Run a command there through a connection of its own."
        words = [
            "ssh",
            "-F",
            str(self.net.config),
            "-o",
            "ControlPath=none",
            f"{user}@{self.name}" if user else self.name,
            command,
        ]
        done = subprocess.run(words, text=True, capture_output=True, timeout=240, **more)
        assert not check or done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
        return done

    # --- power and network

    def boot(self) -> None:
        "Switch it on, with a boot id of its own."
        assert self.process is None
        self.boots += 1
        if not self.net.real:
            self._boot_plain()
        else:
            (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
            spec = {
                "name": self.name,
                "folder": str(self.folder),
                "hosts": self.net.addresses,
                "python": _python_folders(),
                "options": self.options,
            }
            (self.folder / "spec.json").write_text(json.dumps(spec))
            with open(self.folder / "init.log", "ab") as log:
                self.process = subprocess.Popen(
                    [
                        "ip",
                        "netns",
                        "exec",
                        self.space,
                        "setpriv",
                        "--pdeathsig",
                        "KILL",
                        "unshare",
                        "--uts",
                        "--ipc",
                        "--mount",
                        "--pid",
                        "--fork",
                        "--kill-child",
                        sys.executable,
                        "-I",
                        "-S",
                        __file__,
                        str(self.folder / "spec.json"),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        end = time.monotonic() + 180
        while True:
            with suppress(OSError), socket.create_connection((self.address, self.port), 1) as line:
                line.settimeout(20)
                if line.recv(4) == b"SSH-":
                    return
            assert time.monotonic() < end and self.process.poll() is None, (
                f"{self.name} did not come up: {(self.folder / 'init.log').read_text()}"
            )
            time.sleep(0.02)

    def _boot_plain(self) -> None:
        "An sshd of this user on an address of loopback."
        if not self.folder.joinpath("port").exists():
            with socket.socket() as probe:
                probe.bind((self.address, 0))
                self.folder.joinpath("port").write_text(str(probe.getsockname()[1]))
        self.port = int(self.folder.joinpath("port").read_text())
        Path("/run/sshd").mkdir(exist_ok=True) if os.geteuid() == 0 else None
        with open(self.folder / "init.log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    *sshd_command(self.net.folder, self.address, self.port),
                    *("-o", "PidFile=none", "-o", f"SetEnv=HOME={self.home}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def switch_off(self) -> None:
        "The plug is pulled: every process there is gone at once."
        process, self.process = self.process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            if self.net.real:
                for child in _children(process.pid):
                    os.kill(child, signal.SIGKILL)
            process.kill()
        process.wait(120)

    def reboot(self) -> None:
        self.switch_off()
        self.boot()

    def unplug(self) -> None:
        "The network cable is pulled: packets go nowhere, and nobody is told."
        _run("ip", "link", "set", self.link, "down")

    def plug(self) -> None:
        _run("ip", "link", "set", self.link, "up")

    def stop_sshd(self) -> None:
        "Nobody can log in, and whoever is connected is thrown out; everything else goes on."
        (self.folder / "no_sshd").touch()
        self._ask_init(signal.SIGUSR1)

    def start_sshd(self) -> None:
        (self.folder / "no_sshd").unlink()
        self._ask_init(signal.SIGUSR1)

    def _ask_init(self, number: int) -> None:
        for child in _children(self.process.pid):
            os.kill(child, number)

    def inside(self, *words: str, check: bool = True, shell: str = "") -> str:
        "Run something there as root without a connection."
        inner = _children(self.process.pid)[0]
        command = [
            "nsenter",
            "-t",
            str(inner),
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            *(words or ("sh", "-c", shell)),
        ]
        return _run(*command, check=check)

    @property
    def space(self) -> str:
        return f"fsdl-{os.getpid()}-{self.net.key}-{self.name}"

    @property
    def link(self) -> str:
        return f"fv{os.getpid() % 100000}{self.net.key}{list(self.net.hosts).index(self.name)}"


def _children(pid: int) -> list[int]:
    "The first process of the host: the child of `unshare`, which took the place of `ip` and `setpriv`."
    with suppress(OSError):
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _python_folders() -> list[str]:
    """What has to be seen inside for this interpreter to start, where it lies in a folder that is hidden there: a
    home, or /tmp.
    """
    own = {os.path.realpath(path) for path in (sys.base_prefix, sys.prefix, ROOT)}
    return sorted(path for path in own if not any(path.startswith(f"{other}/") for other in own))


def sshd_command(folder: Path, address: str, port: int, *more: str) -> list[str]:
    "sshd in the foreground, keys only."
    options = {
        "Port": port,
        "ListenAddress": address,
        "HostKey": folder / "host_key",
        "AuthorizedKeysFile": folder / "authorized_keys",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "UsePAM": "no",
        "StrictModes": "no",
        "Subsystem": "sftp internal-sftp",
        "MaxStartups": "200:30:400",
        "MaxSessions": 100,
        "PermitRootLogin": "yes",
        "LogLevel": "ERROR",
    }
    return [
        SSHD,
        "-D",
        "-e",
        "-f",
        "/dev/null",
        *(word for key, value in options.items() for word in ("-o", f"{key}={value}")),
        *more,
    ]


class Machines:
    "The hosts, the bridge between them, and the ssh configuration that reaches them."

    number = 0

    def __init__(self, folder: Path, names: list[str], options: dict, force_plain: bool = False):
        Machines.number += 1
        self.key = "abcdefghijklmnopqrstuvwxyz"[Machines.number % 26]
        self.folder, self.config, self.why = (
            folder,
            folder / "ssh_config",
            "plain sshds were asked for" if force_plain else why_no_namespaces(),
        )
        self.real, self.hosts = not self.why, {}
        folder.mkdir(parents=True, exist_ok=True)
        if self.real:
            _sweep()
        prefix = _free_subnet() if self.real else "127.0.0"
        self.addresses = {
            name: f"{prefix}.{number + (2 if self.real else 1)}" for number, name in enumerate(names)
        }
        for key in ("host_key", "id_key"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
        shutil.copy(folder / "id_key.pub", folder / "authorized_keys")
        (folder / "authorized_keys").chmod(0o644)
        self.bridge = f"fsb{os.getpid()}"
        for name in names:
            self.hosts[name] = Host(self, name, self.addresses[name], options.get(name, {}))
        try:
            self._start(prefix)
        except BaseException:  # such as a test's time limit while it waits for a page
            self.close()
            raise

    def _start(self, prefix: str) -> None:
        if self.real:
            self._wire(prefix)
        for host in self.hosts.values():
            for key in ("host_key", "authorized_keys"):
                shutil.copy(self.folder / key, host.folder / key)
            host.boot()
        self.write_config()

    def _wire(self, prefix: str) -> None:
        self.bridge += self.key
        _run("ip", "link", "add", self.bridge, "type", "bridge")
        # else the kernel gives it an address of its own some seconds later
        _run("ip", "link", "set", self.bridge, "addrgenmode", "none")
        _change_addresses("ip", "addr", "add", f"{prefix}.1/24", "dev", self.bridge)
        _run("ip", "link", "set", self.bridge, "up")
        for host in self.hosts.values():
            inner = f"{host.link}i"
            _run("ip", "netns", "add", host.space)
            _run("ip", "link", "add", host.link, "type", "veth", "peer", "name", inner, "netns", host.space)
            _run("ip", "link", "set", host.link, "addrgenmode", "none")
            _run("ip", "link", "set", host.link, "master", self.bridge, "up")
            for words in (
                ("addr", "add", f"{host.address}/24", "dev", inner),
                ("link", "set", inner, "name", "eth0"),
                ("link", "set", "eth0", "up"),
                ("link", "set", "lo", "up"),
            ):
                _run("ip", "-n", host.space, *words)

    def write_config(self, **more: str) -> None:
        "What a person would have in ~/.ssh/config. The key of the hosts is known beforehand."
        public = " ".join((self.folder / "host_key.pub").read_text().split()[:2])
        (self.folder / "known_hosts").write_text("".join(f"{h.name} {public}\n" for h in self.hosts.values()))
        user = "root" if self.real else getpass.getuser()
        lines = []
        for host in self.hosts.values():
            lines += [
                f"Host {host.name}",
                f"  HostName {host.address}",
                f"  HostKeyAlias {host.name}",
                f"  Port {host.port}",
            ]
        common = {
            "User": user,
            "IdentityFile": self.folder / "id_key",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.folder / "known_hosts",
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "LogLevel": "ERROR",
            **more,
        }
        lines += ["Host *", *(f"  {key} {value}" for key, value in common.items())]
        self.config.write_text("\n".join(lines) + "\n")

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def environment(self) -> dict[str, str]:
        "What a launcher needs to reach them."
        return {"FSDL_SSH_CONFIG": str(self.config)}

    def close(self) -> None:
        for host in self.hosts.values():
            host.switch_off()
            if self.real:
                _run("ip", "netns", "del", host.space, check=False)
                _run("ip", "link", "del", host.link, check=False)
        if self.real:
            _change_addresses("ip", "link", "del", self.bridge, check=False)


@contextmanager
def machines(
    folder: Path,  # for keys, homes and logs
    names: list[str],  # the hosts' names, as ssh takes them
    force_plain: bool = False,  # sshds on loopback even where namespaces could be made
    # per host: gpus (fake ones), clock (seconds it is ahead), disk ({"/path": "3m"}: small tmpfs),
    # loopback_name (Debian's 127.0.1.1), home (a folder that several hosts have as their home, as by NFS)
    **options: dict,
):
    "Hosts that are up until the block ends."
    net = Machines(Path(folder), names, options, force_plain)
    try:
        yield net
    finally:
        net.close()


# --- inside a host: this file is its first process
# -----------------------------------------------------------


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


FAKE_SMI = """#!/bin/sh
# what `nvidia-smi --query-gpu=... --format=csv,noheader,nounits` prints for {count} idle GPUs
# (form as in NVIDIA's manual)
case "$*" in
*query-compute-apps*) cat /run/fsdl-host/gpu_apps 2>/dev/null; exit 0;;
*query-gpu=*) ;;
*) echo "NVIDIA-SMI 550.54.15"; exit 0;;
esac
for argument; do case "$argument" in --query-gpu=*) fields=${{argument#--query-gpu=}};; esac; done
number=0
while [ $number -lt {count} ]; do
  line=
  for field in $(echo "$fields" | tr , ' '); do
    case $field in
      index) value=$number;; name|gpu_name) value="NVIDIA H100 80GB HBM3";;
      memory.total) value=81559;; memory.used) value=4;; utilization.gpu) value=0;;
      driver_version) value=550.54.15;; uuid|gpu_uuid) value="GPU-0000000$number";;
      compute_mode) value=Default;; *) value="[N/A]";;
    esac
    line="$line${{line:+, }}$value"
  done
  echo "$line"
  number=$((number + 1))
done
"""


def _furnish(spec: dict) -> None:
    "Give the host its own files."
    folder, options, root = Path(spec["folder"]), spec["options"], os.path.expanduser("~root")
    _mount("--make-rprivate", "/")
    _mount("-t", "proc", "proc", "/proc")
    _mount("--bind", str(folder / "boot_id"), "/proc/sys/kernel/random/boot_id")
    subprocess.run(["hostname", spec["name"]], check=True)
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for name in ("sshd", "fsdl-host", "python"):
        Path("/run", name).mkdir()
    _mount("--bind", str(folder), "/run/fsdl-host")
    hidden = [path for path in spec["python"] if path.startswith((f"{root}/", "/home/", "/tmp/"))]
    for number, path in enumerate(hidden):
        Path(f"/run/python/{number}").mkdir()
        _mount("--bind", path, f"/run/python/{number}")
    own = Path("/run/fsdl-host")
    if options.get("home"):
        _mount("--bind", options["home"], str(own / "root"))
    for user, number in USERS.items():
        os.chown(own / "home" / user, number, LAB)
    (own / "root").chmod(0o755)  # the interpreter's folder may lie below it
    lines = {
        "passwd": [f"{u}:x:{n}:{LAB}::/home/{u}:/bin/sh\n" for u, n in USERS.items()],
        "group": [f"lab:x:{LAB}:{','.join(USERS)}\n"],
        "shadow": [f"{u}:*:20000:0:99999:7:::\n" for u in USERS],
    }
    for name, more in lines.items():
        (own / name).write_text(Path("/etc", name).read_text() + "".join(more))
        _mount("--bind", str(own / name), f"/etc/{name}")
    loopback = f"127.0.1.1 {spec['name']}\n" if options.get("loopback_name") else ""
    (own / "hosts").write_text(
        "127.0.0.1 localhost\n"
        + loopback
        + "".join(f"{address} {name}\n::ffff:{address} {name}\n" for name, address in spec["hosts"].items())
    )
    _mount("--bind", str(own / "hosts"), "/etc/hosts")
    (own / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # nobody answers there, at once
    _mount("--bind", str(own / "resolv.conf"), os.path.realpath("/etc/resolv.conf"))
    for path in ("/tmp", "/dev/shm"):
        _mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", path)
    (own / "var").chmod(0o1777)
    _mount("--bind", str(own / "var"), "/var/tmp")
    _mount("--bind", str(own / "root"), root)
    _mount("--bind", str(own / "home"), "/home")
    for number, path in enumerate(hidden):
        Path(path).mkdir(parents=True, exist_ok=True)
        _mount("--bind", f"/run/python/{number}", path)
    for path, size in options.get("disk", {}).items():
        Path(path).mkdir(parents=True, exist_ok=True)
        _mount("-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs", path)
    if options.get("gpus"):
        _add_gpus(options["gpus"])


def _add_gpus(count: int) -> None:
    "Device files that are /dev/null, and an nvidia-smi that counts them."
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/mnt")
    for name in os.listdir("/dev"):
        if Path("/dev", name).is_dir():
            Path("/mnt", name).mkdir()
            _mount("--rbind", f"/dev/{name}", f"/mnt/{name}")
        elif not Path("/dev", name).is_symlink():
            Path("/mnt", name).touch()
            _mount("--bind", f"/dev/{name}", f"/mnt/{name}")
        else:
            os.symlink(os.readlink(f"/dev/{name}"), f"/mnt/{name}")
    for name in ("nvidiactl", *(f"nvidia{number}" for number in range(count))):
        os.symlink("/dev/null", f"/mnt/{name}")
    _mount("--rbind", "/mnt", "/dev")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/usr/local/bin")
    smi = Path("/usr/local/bin/nvidia-smi")
    smi.write_text(FAKE_SMI.format(count=count))
    smi.chmod(0o755)


def _first_process(spec_file: str) -> None:
    "Start sshd, collect orphans, stop and start sshd when told."
    spec = json.loads(Path(spec_file).read_text())
    _furnish(spec)
    clock, more = spec["options"].get("clock"), []
    if clock:
        library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
        more = [
            "-o",
            (
                f"SetEnv=LD_PRELOAD={library} FAKETIME={clock:+d}s FAKETIME_DONT_FAKE_MONOTONIC=1"
                " DONT_FAKE_MONOTONIC=1"
            ),
        ]
    words = [*sshd_command(Path("/run/fsdl-host"), "0.0.0.0", 22, "-o", "PidFile=none"), *more]
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sshd = None
    while True:
        wanted = not Path("/run/fsdl-host/no_sshd").exists()
        if wanted and sshd is None:
            sshd = subprocess.Popen(words, stdin=subprocess.DEVNULL).pid
        elif not wanted and sshd is not None:
            for entry in os.listdir("/proc"):
                with suppress(OSError):
                    if entry.isdigit() and Path("/proc", entry, "comm").read_text().startswith("sshd"):
                        os.kill(int(entry), signal.SIGKILL)
        signal.sigtimedwait([], 0.05) if sshd is None else None
        with suppress(ChildProcessError):
            while ended := os.waitpid(-1, os.WNOHANG)[0]:
                sshd = None if ended == sshd else sshd
        time.sleep(0.05)


if __name__ == "__main__":
    _first_process(sys.argv[1])
