"""Compile the locks of the templates: what each needs, and what development needs with nbdev 2 and with nbdev 3.

The versions are those of requirements/dev.txt and torch.txt wherever these have the package: with them the templates
are tested. A project compiles its own by `make lock`.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from lock import A_BUILD_EACH, BUILDS, LEFT_TO_TORCH, LOCK, OLDEST, ROOT, entries

from fsdl_dev.core.settings import nbdev_requirements

TEMPLATES = ROOT / "templates"
HEADER = (
    "# Compiled by uv from {} and what fsdl_dev needs (`make lock`). CUDA's own packages come with torch.\n"
)
OF_NBDEV = ("nbdev==", "execnb==", "fastcore==", "ghapi==", "fastgit==")


def pins(without: tuple[str, ...] = ()) -> str:
    """The versions that are tested, as constraints for uv."""
    lines = [
        one.splitlines()[0].removesuffix("\\").strip()
        for one in entries(LOCK.read_text() + BUILDS.read_text())
    ]
    return "\n".join(line for line in lines if not line.startswith(without)) + "\n"


def compile_lock(wanted: str, known: str, name: str) -> str:
    """The text of a lock: without digests, since torch is another file for each index."""
    with tempfile.TemporaryDirectory() as folder:
        asked, constraints = Path(folder, "asked.in"), Path(folder, "pins.txt")
        asked.write_text(wanted)
        constraints.write_text(known)
        command = [
            str(Path(sys.executable).with_name("uv")),
            *("pip", "compile", "--quiet", "--universal", "--python-version", OLDEST, "--no-build"),
            *("--no-header", "--no-annotate", "--no-emit-index-url", "-c", str(constraints)),
            *(str(asked), str(ROOT / "pyproject.toml")),
        ]
        text = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout
    kept = [line for line in entries(text) if not LEFT_TO_TORCH.match(line)]
    assert any(A_BUILD_EACH.match(line) for line in kept), "a lock without torch"
    return HEADER.format(name) + "\n".join(kept) + "\n"


def main() -> int:
    for source in sorted(TEMPLATES.glob("*/requirements/project.in")):
        lock = compile_lock(source.read_text(), pins(), source.name)
        source.with_suffix(".txt").write_text(lock)
        print(
            f"{source.with_suffix('.txt').relative_to(ROOT)}: {lock.count('==')} packages pinned", flush=True
        )
    source = TEMPLATES / "common" / "requirements" / "dev.in"
    for generation, left_out in ((2, ()), (3, OF_NBDEV)):
        asked = nbdev_requirements(generation).replace("'", "").replace(" ", "\n")
        text = source.read_text().replace("-c project.txt\n", "").replace("THE_NBDEV", asked)
        lock = compile_lock(text, pins(left_out), source.name)
        target = source.with_suffix(f".nbdev{generation}.txt")
        target.write_text(lock)
        print(f"{target.relative_to(ROOT)}: {lock.count('==')} packages pinned", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
