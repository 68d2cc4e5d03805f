"""`fsdl adopt` adds to a project that is there, changes nothing of it, and what it adds can be launched."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import commit_all

from fsdl_dev.cli.main import main

TRAIN = "#| export\ndef train(steps: int = 3) -> int:\n    print('trained', steps)\n    return steps"
CELLS = {"00_core.ipynb": ["# Core\n\n> One function.", "#| default_exp core", TRAIN, "assert train(1) == 1"]}


def ask(*words: str, answer: str = "") -> tuple[int, str]:
    done = CliRunner().invoke(main, ["adopt", *words], prog_name="fsdl", input=answer)
    return done.exit_code, done.output


def contents(folder: Path) -> dict[str, bytes]:
    files = (
        path for path in folder.rglob("*") if path.is_file() and ".git" not in path.relative_to(folder).parts
    )
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_nothing_is_written_unless_it_is_said_so(make_project, monkeypatch):
    project = make_project(notebooks=CELLS)
    monkeypatch.chdir(project)
    before = contents(project)
    for words, answer, status in ((["--dry-run"], "", 0), ([], "n\n", 1), ([], "", 1), (["--json"], "", 0)):
        code, said = ask(*words, answer=answer)
        assert code == status and "AGENTS.md" in said, said
        assert contents(project) == before
    code, said = ask("--without", "agnts")
    assert code == 2 and "agents" in said, said


def test_what_is_there_stays_and_the_rest_is_added_once(make_project, monkeypatch):
    project = make_project(notebooks=CELLS)
    (project / "AGENTS.md").write_text("# Ours\n\nBe kind.")
    (project / ".github" / "workflows").mkdir(parents=True)
    (project / ".github" / "workflows" / "test.yml").write_text("name: test\n")
    commit_all(project)
    before = contents(project)
    monkeypatch.chdir(project / "nbs")
    code, said = ask("--yes")
    after = contents(project)
    assert code == 0 and all(after[name].startswith(text.rstrip()) for name, text in before.items()), said
    assert b"Be kind.\n\n## Launch with fsdl" in after["AGENTS.md"]
    assert b"fsdl check" in after[".github/workflows/fsdl.yml"]
    assert "--watch" in json.loads(after[".vscode/tasks.json"])["tasks"][0]["command"]
    code, said = ask("--yes")
    assert code == 0 and "lacks nothing" in said and contents(project) == after, said


@pytest.mark.slow
def test_the_launch_notebook_that_is_added_launches(make_project, monkeypatch):
    project = make_project(notebooks=CELLS)
    monkeypatch.chdir(project)
    code, said = ask("--yes")
    assert code == 0 and (project / "nbs" / "01_launch.ipynb").is_file(), said
    launch = re.search(r"next: fsdl check (\S+ --cell \d+)", said)[1].split()
    done = CliRunner().invoke(main, ["launch", *launch, "--on", "test", "--json"], prog_name="fsdl")
    assert done.exit_code == 0 and json.loads(done.stdout)["state"] == "succeeded", done.output
    assert "trained 3" in CliRunner().invoke(main, ["logs", "last"], prog_name="fsdl").output


def test_a_folder_without_code_and_a_home_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for words in (["--yes"], ["--yes", "/tmp"]):
        code, said = ask(*words)
        assert code == 4 and "fsdl new" in said, said
    assert contents(tmp_path) == {}
