"""Compile pyproject.toml and requirements/dev.in into requirements/dev.txt and requirements/torch.txt.

uv resolves for every platform and every Python that the project supports, and dev.txt has the digests of each
package's files: `make setup` installs nothing that was exchanged since. torch and torchvision are files of their
own for each index (CUDA, CPU, Apple), so no digest fits them: torch.txt has their versions only, and the CUDA
packages, which a CUDA build of torch pins exactly by itself, stand nowhere.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK, BUILDS = ROOT / "requirements" / "dev.txt", ROOT / "requirements" / "torch.txt"
EXTRAS = ("data", "tensorboard", "ssh", "k8s", "s3")  # sky wants an environment of its own
OLDEST = "3.11"
A_BUILD_EACH = re.compile(r"(torch|torchvision)==")
LEFT_TO_TORCH = re.compile(r"(nvidia-(?!ml-py)|triton\b|cuda-)")
HEADER = """\
# Every package of the development environment, pinned, with the digests of its files. Written by `make lock` from
# pyproject.toml and requirements/dev.in; edit those, not this file. torch and torchvision: torch.txt.
"""
BUILDS_HEADER = """\
# Written by `make lock`. No build tag and no digest: pip takes the build that your index offers (CUDA, CPU or Apple).
"""


def entries(compiled: str) -> list[str]:
    """The packages of a compiled lock, each with the lines that belong to it."""
    found: list[str] = []
    for line in compiled.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(" "):
            found[-1] += "\n" + line.rstrip()
        else:
            found.append(line.rstrip())
    return found


def split(compiled: str) -> tuple[str, str]:
    """The lock with digests, and the versions of what has a build for each index."""
    every = [one for one in entries(compiled) if not LEFT_TO_TORCH.match(one)]
    builds = [one.split()[0] for one in every if A_BUILD_EACH.match(one)]
    locked = [one for one in every if not A_BUILD_EACH.match(one)]
    return HEADER + "\n".join(locked) + "\n", BUILDS_HEADER + "\n".join(builds) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions the .in files allow")
    options = parser.parse_args()
    command = [
        str(Path(sys.executable).with_name("uv")),
        *("pip", "compile", "--quiet", "--universal", "--generate-hashes", "--python-version", OLDEST),
        # what has no wheel would be built, by code that runs then
        *("--no-build", "--no-header", "--no-emit-index-url"),
        *(part for extra in EXTRAS for part in ("--extra", extra)),
        *("--output-file", os.path.relpath(LOCK, ROOT)),
        *(["--upgrade"] if options.upgrade else []),
        *("pyproject.toml", "requirements/dev.in"),
    ]
    print("Resolving pyproject.toml and requirements/dev.in (some seconds) ...", flush=True)
    before = LOCK.read_text()
    LOCK.write_text(before + BUILDS.read_text())  # uv keeps the versions that it finds there
    result = subprocess.run(command, cwd=ROOT)
    if result.returncode:
        LOCK.write_text(before)
        return result.returncode
    locked, builds = split(LOCK.read_text())
    LOCK.write_text(locked)
    BUILDS.write_text(builds)
    print(f"{LOCK.relative_to(ROOT)}: {locked.count('==')} packages pinned")
    return 0


if __name__ == "__main__":
    sys.exit(main())
