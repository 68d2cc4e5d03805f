"""Compile pyproject.toml and requirements/dev.in into requirements/dev.txt.

pip-compile pins what it finds on the machine it runs on. A lock that other machines can use must not
say which machine that was, so this drops local versions (`2.13.0+cpu` becomes `2.13.0`: pip takes the
build that its index offers) and the CUDA packages that a CUDA build of torch pins exactly by itself.

Compile under the oldest Python that the project supports (pip-compile takes what fits the Python it runs under).
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "dev.txt"
EXTRAS = ("data", "tensorboard", "ssh", "k8s", "s3")  # sky wants an environment of its own
LEFT_TO_TORCH = re.compile(r"(nvidia-(?!ml-py)|triton\b|cuda-)")
HEADER = """\
# Every package of the development environment, pinned. Written by `make lock` from
# pyproject.toml and requirements/dev.in; edit those, not this file.
# torch carries no build tag: pip takes the build that your index offers (CUDA, CPU or Apple).
"""


def portable(compiled: str) -> str:
    """Return the compiled lock without local versions, CUDA packages and comments about them."""
    kept, dropping = [], False
    for line in compiled.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if not line.startswith((" ", "#")):
            dropping = bool(LEFT_TO_TORCH.match(line))
            line = re.sub(r"^([A-Za-z0-9._-]+==[^+\s;]+)\+[A-Za-z0-9.]+", r"\1", line)
        if not dropping:
            kept.append(line.rstrip())
    return HEADER + "\n".join(kept) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions the .in files allow")
    options = parser.parse_args()
    command = [
        sys.executable,
        "-m",
        "piptools",
        "compile",
        "--quiet",
        "--strip-extras",
        "--allow-unsafe",
        "--no-header",
        "--no-emit-index-url",
        "--no-emit-find-links",
        "--no-emit-trusted-host",
        "--no-emit-options",
        *(part for extra in EXTRAS for part in ("--extra", extra)),
        "--output-file",
        os.path.relpath(LOCK, ROOT),
        "pyproject.toml",
        "requirements/dev.in",
    ]
    print("Resolving pyproject.toml and requirements/dev.in (a minute or two) ...", flush=True)
    result = subprocess.run(command + (["--upgrade"] if options.upgrade else []), cwd=ROOT)
    if result.returncode:
        return result.returncode
    LOCK.write_text(portable(LOCK.read_text()))
    pins = sum("==" in line for line in LOCK.read_text().splitlines())
    print(f"{LOCK.relative_to(ROOT)}: {pins} packages pinned")
    return 0


if __name__ == "__main__":
    sys.exit(main())
