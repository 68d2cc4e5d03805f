"""Set up the development environment in .venv from the lock. Does nothing when it is already there.

Runs under the machine's own Python, which may be too old for the project: keep the syntax old too.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "dev.txt"
BUILDS = ROOT / "requirements" / "torch.txt"  # a file of its own for each index: no digest fits them all
OLDEST = (3, 11)


def fail(what, fix):
    sys.exit("\nset-up: {}\n  fix: {}\n".format(what, fix))


def check_python(venv):
    """Refuse a Python that cannot make the environment, and say which command can."""
    found = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] < OLDEST:
        fail(
            "Python {}.{} or newer is needed, and {} is {}".format(
                OLDEST[0], OLDEST[1], sys.executable, found
            ),
            "name a newer one, e.g. `make quickstart PYTHON=python3.12`",
        )
    try:
        import ensurepip  # noqa: F401
        import venv as _  # noqa: F401
    except ImportError:
        fail(
            "{} (Python {}) has no working venv module".format(sys.executable, found),
            "install it (Debian, Ubuntu: `apt-get install python3-venv`), or name another Python by"
            " PYTHON=...",
        )


def fingerprint():
    """Identify what the environment is made from: the lock, the packaging and the set-up code."""
    digest = hashlib.sha256(("%d.%d" % sys.version_info[:2]).encode())
    for path in (
        LOCK,
        BUILDS,
        ROOT / "pyproject.toml",
        ROOT / "tools" / "torchvision_cpu.py",
        Path(__file__),
    ):
        digest.update(path.read_bytes())
    return "{} {}".format(digest.hexdigest(), ROOT)


def run_pip(python, log, arguments, total=0):
    """Run pip, keep all it says in the log, and show how far it has come."""
    environment = dict(os.environ, PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1", PYTHONUNBUFFERED="1")
    command = [str(python), "-m", "pip", "install", "--no-input"] + arguments
    collected, tail = 0, []
    with log.open("a", encoding="utf-8") as sink:
        sink.write("$ {}\n".format(" ".join(command)))
        process = subprocess.Popen(
            command,
            cwd=str(ROOT),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for line in process.stdout:
            sink.write(line)
            tail = (tail + [line])[-25:]
            if line.startswith("Collecting "):
                collected += 1
                if total and collected % 40 == 0:
                    print("    {} of {} found".format(collected, total), flush=True)
            elif total and line.startswith("Installing collected packages"):
                print("    all found; unpacking (the longest step)", flush=True)
        if process.wait():
            errors = [line for line in tail if line.startswith("ERROR")] or tail
            print("".join(line[:400].rstrip() + "\n" for line in errors))
            fail(
                "pip could not install the environment (log: {})".format(log),
                "fix what pip says above, then run the same command again",
            )


def copy_labextension(venv):
    """Put the working tree's JupyterLab extension where JupyterLab looks: an editable installation leaves it out.

    Copies: JupyterLab's server answers 403 for a link that leads out of its folder.
    """
    source, target = ROOT / "labextension", venv / "share" / "jupyter" / "labextensions" / "fsdl_dev"
    shutil.rmtree(str(target), ignore_errors=True)
    shutil.copytree(str(source), str(target))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", default=".venv", help="folder of the environment, relative to the project")
    venv = ROOT / parser.parse_args().venv
    check_python(venv)
    stamp, log = venv / "fsdl-installed", venv / "install.log"
    python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = fingerprint()
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        copy_labextension(venv)
        return
    started = time.time()
    if venv.exists() and (not python.exists() or subprocess.run([str(python), "-c", ""]).returncode):
        print("set-up: {} has no working Python, making it anew".format(venv.name), flush=True)
        shutil.rmtree(str(venv))
    if not python.exists():
        print("set-up 1/3: a virtual environment in {} ({})".format(venv.name, sys.executable), flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    if stamp.exists():
        stamp.unlink()
    total = sum("==" in line for line in LOCK.read_text().splitlines())
    print(
        "set-up 2/3: {} pinned packages from requirements/dev.txt (log: {}/install.log)".format(
            total, venv.name
        ),
        flush=True,
    )
    # the lock is complete: pip looks for nothing else, and takes no file whose digest is another
    checked = ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    run_pip(python, log, ["--no-compile"] + checked + ["-r", str(LOCK.relative_to(ROOT))], total)
    run_pip(python, log, ["--no-compile", "-r", str(BUILDS.relative_to(ROOT))])
    # pip compiles on one processor; what cannot be compiled (templates, files for other versions) is left as it is
    compiling = [str(python), "-m", "compileall", "-qq", "-j", "0", str(venv / "lib")]
    subprocess.run(compiling, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print("set-up 3/3: fsdl_dev itself, editable", flush=True)
    run_pip(python, log, ["--no-deps", "--no-build-isolation", "-e", "."])
    copy_labextension(venv)
    subprocess.run([str(python), str(ROOT / "tools" / "torchvision_cpu.py")], check=True)
    stamp.write_text(wanted)
    print("set-up: done in {:.0f} s".format(time.time() - started), flush=True)


if __name__ == "__main__":
    main()
