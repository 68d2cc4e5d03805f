"""What `make release` asks of a version: the changelog has its entries and its day, and the tag has both."""

import shutil
import subprocess
import sys

from repository import ROOT

CHANGES = """## [Unreleased]

## [9.8.7] - {day}

### Added

- A bell.

## [9.8.6] - 2029-01-01
"""


def release(folder, *options):
    command = [sys.executable, "tools/release.py", *options]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True)


def commit(folder, day):
    (folder / "CHANGELOG.md").write_text(CHANGES.format(day=day))
    subprocess.run("git add -A && git commit -qm x", shell=True, cwd=folder, check=True)


def test_a_version_is_released_with_its_day_and_its_headings(tmp_path):
    for name in ("tools", "fsdl_dev"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "tools" / "release.py", tmp_path / "tools")
    (tmp_path / "fsdl_dev" / "__init__.py").write_text('__version__ = "9.8.7"\n')
    (tmp_path / "settings.ini").write_text("[DEFAULT]\nversion = 9.8.7\n")
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)

    commit(tmp_path, "unreleased")
    refused = release(tmp_path)
    assert refused.returncode == 1 and "no date for 9.8.7: write `## [9.8.7] - 2" in refused.stderr, refused
    assert not (tmp_path / "dist").exists()

    commit(tmp_path, "2030-01-02")
    shown = release(tmp_path, "--dry-run")
    assert shown.returncode == 0 and "- A bell." in shown.stdout and "9.8.6" not in shown.stdout, shown
    made = [
        sys.executable,
        "-c",
        "import release; release.make_tag('9.8.7')",
    ]  # without the build, which takes seconds
    subprocess.run(made, cwd=tmp_path / "tools", check=True)
    command = ["git", "tag", "--list", "--format=%(contents)", "v9.8.7"]
    said = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=True).stdout
    assert said.strip() == "9.8.7\n\n### Added\n\n- A bell."
    assert "raise __version__" in release(tmp_path).stderr
