"""Release the version in fsdl_dev/__init__.py: check it, build the sdist and the wheel in dist/, tag it.

The tag and the files stay on this machine: pushing and uploading are commands that the output names.
"""

import argparse
import configparser
import datetime
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def git(*arguments: str) -> str:
    """What git prints. Raises CalledProcessError."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, text=True, capture_output=True, check=True)
    return done.stdout.strip()


def changes(version: str) -> str | None:
    """The entries of CHANGELOG.md for a version, dated or not yet; None where it has no heading for it."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## \[{re.escape(version)}\] - [^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return found[1].strip() if found else None


def dated(version: str) -> bool:
    """Whether the heading of a version in CHANGELOG.md has the day of its release."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return bool(re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", text, re.M))


def problems(version: str) -> list[str]:
    """What keeps this version from being released, each with its fix."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "settings.ini")
    wrong = []
    if git("status", "--porcelain"):
        wrong.append("the working tree has changes: commit them")
    if settings["DEFAULT"]["version"] != version:
        wrong.append(f"settings.ini has version {settings['DEFAULT']['version']}: set it to {version}")
    if not changes(version):
        wrong.append(f"CHANGELOG.md has no entries under `## [{version}] - YYYY-MM-DD`: write them")
    elif not dated(version):
        today = f"{datetime.date.today():%Y-%m-%d}"
        wrong.append(f"CHANGELOG.md has no date for {version}: write `## [{version}] - {today}`")
    if git("tag", "--list", f"v{version}"):
        wrong.append(f"the tag v{version} exists: raise __version__ in fsdl_dev/__init__.py")
    return wrong


def make_tag(version: str) -> None:
    """Tag HEAD as a version, with its entries. Raises CalledProcessError."""
    # git takes lines that begin with # for comments, and the headings of the changelog begin so
    message = f"{version}\n\n{changes(version)}"
    git("tag", "--annotate", f"v{version}", "--cleanup=whitespace", "--message", message)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="check and show, build and tag nothing")
    options = parser.parse_args()
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "fsdl_dev" / "__init__.py").read_text(), re.M)
    if not found:
        sys.exit("release: fsdl_dev/__init__.py has no line __version__ = ...")
    version, tag = found[1], f"v{found[1]}"
    wrong = problems(version)
    for line in wrong:
        print(f"release: {line}", file=sys.stderr)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist"]
    print(
        f"release {version} of {git('rev-parse', '--short', 'HEAD')}\n\n{changes(version) or '(no entries)'}\n"
    )
    print(f"  python {' '.join(build[1:])}\n  git tag --annotate {tag}")
    if wrong or options.dry_run:
        return bool(wrong)
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    make_tag(version)
    print("\n".join(f"built {path.relative_to(ROOT)}" for path in sorted((ROOT / "dist").iterdir())))
    print(f"tagged {tag}; next: git push origin {tag} && twine upload dist/*")
    return 0


if __name__ == "__main__":
    sys.exit(main())
