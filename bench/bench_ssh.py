"""Launch to the first line of output on another machine: this project beside `ssh host command` and beside
rsync + ssh; and what a second launch sends.

python bench/bench_ssh.py [--rounds 9] [--files 200]

Every connection is warm (one shared connection each). Each round runs every launcher once, in turn. The far
machine is a network namespace with its own sshd where this machine can make one, else an sshd on loopback. The
bytes of the second launch are counted at the network card.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from side_by_side import make_project, measure, print_times, use_test_helpers


def lay_out(folder: Path, host: str, files: int) -> None:
    """A project of some files under git, and a target of the name `box`."""
    make_project(
        folder, f'[tool.fsdl_dev.targets.box]\nkind = "ssh"\nhost = "{host}"\npython = "{sys.executable}"\n'
    )
    package = folder / "package"
    package.mkdir()
    for number in range(files):
        (package / f"part{number}.py").write_text(
            "".join(f"def function_{number}_{i}(x):\n    return x * {number} + {i}\n\n\n" for i in range(100))
        )
    for words in (("add", "-A"), ("commit", "-qm", "all")):
        subprocess.run(["git", *words], cwd=folder, check=True)


def ours(folder: Path, stamp: str):
    """`fsdl_dev.launch` on the target."""
    import fsdl_dev

    return fsdl_dev.launch("trivial.py", args=[stamp], folder=folder, on="box", gpus=0, say=None)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--files", type=int, default=200, help="of the project")
    chosen = options.parse_args()
    use_test_helpers()
    from hosts import machines

    with tempfile.TemporaryDirectory() as name, machines(Path(name) / "net", ["box"]) as net:
        host, folder = net["box"], Path(name) / "project"
        lay_out(folder, "box", chosen.files)
        os.environ.update(net.environment(), FSDL_STATE=f"{name}/state", FSDL_STORE=f"{name}/store")
        stamp_far, stamp = (
            ("/var/tmp/stamp", host.folder / "var/stamp")
            if net.real
            else (f"{name}/stamp", Path(name) / "stamp")
        )
        ssh = [
            "ssh",
            "-F",
            str(net.config),
            "-o",
            "ControlMaster=auto",
            "-o",
            f"ControlPath={name}/%C",
            "-o",
            "ControlPersist=60",
        ]
        remote = f"{shlex.quote(sys.executable)} trivial.py {stamp_far}"
        far = "/var/tmp/peer" if net.real else f"{name}/peer"

        def bare() -> None:
            subprocess.run([*ssh, "box", f"cd {far} && {remote}"], check=True, stdout=subprocess.DEVNULL)

        def rsync() -> None:
            subprocess.run(
                [
                    "rsync",
                    "-a",
                    "--delete",
                    "--exclude",
                    ".git",
                    "-e",
                    shlex.join(ssh),
                    f"{folder}/",
                    f"box:{far}/",
                ],
                check=True,
            )
            bare()

        waiting = []

        def seconds(start) -> float:
            stamp.unlink(missing_ok=True)
            began = time.time()
            start()
            while not (stamp.exists() and stamp.read_text()):
                if time.time() - began > 120:
                    raise SystemExit(f"no first line in 120 s: {waiting and waiting[-1].tail(20)}")
                time.sleep(0.002)
            took = float(stamp.read_text()) - began
            for run in waiting:
                run.wait(120, progress=False)
            waiting.clear()
            return took

        # the first round sends everything and warms the connection
        launchers = {
            "rsync + ssh": rsync,
            "ssh host command": bare,
            "ours": lambda: waiting.append(ours(folder, stamp_far)),
        }
        times = measure({name: partial(seconds, start) for name, start in launchers.items()}, chosen.rounds)
        where = "namespaces" if net.real else net.why
        print_times(
            f"launch to first line of output, connection warm ({chosen.rounds} rounds, medians; {where})",
            times,
            "ssh host command",
            difference=True,
        )
        second_launch(folder, host, net, stamp_far)


def second_launch(folder: Path, host, net, stamp_far: str) -> None:
    """Change one line and launch again; count what goes over the wire."""
    counter = Path(f"/sys/class/net/{host.link}/statistics") if net.real else None

    def sent() -> int:
        return int((counter / "tx_bytes").read_text()) if counter else 0

    part = folder / "package" / "part7.py"
    part.write_text(part.read_text().replace("x * 7 + 3\n", "x * 7 + 4\n", 1))
    before = sent()
    run = ours(folder, stamp_far)
    launched = sent() - before
    said = [
        event.get("bytes")
        for event in run.events
        if event["kind"] == "phase" and event["name"] == "snapshot" and event["state"] == "end"
    ]
    run.wait(120, progress=False)
    print(f"\nsecond launch with one changed line: {said} bytes of snapshot", end="")
    print(
        f"; {launched:,} bytes left the network card until the launch returned, {sent() - before:,} until the"
        " run had ended"
        if counter
        else ""
    )


if __name__ == "__main__":
    main()
