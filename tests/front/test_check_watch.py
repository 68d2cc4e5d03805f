"""`fsdl check --watch` as an editor reads it: with the patterns of the page *Editors*, round after round."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from repository import ROOT

PAGE = ROOT / "nbs" / "tutorials" / "34_editors.ipynb"
CELLS = [
    "# Train\n\n> A model.",
    "#| default_exp train",
    "#| export\nRATE = 0.1",
    "helper = 3",
    "%%fsdl_launch --on local\n#| eval: false\nprint(RATE)\nprint(helper)",
]


def matcher() -> dict:
    "The problem matcher that the page tells its readers to copy."
    text = "\n".join(cell.source for cell in nbformat.read(PAGE, 4).cells)
    return json.loads(re.search(r"```json\n(.*?)```", text, re.S)[1])["tasks"][0]["problemMatcher"]


class Watch:
    "The command, and its rounds."

    def __init__(self, folder: Path, *words: str):
        command = [sys.executable, "-m", "fsdl_dev", "check", "--watch", "--no-test", *words]
        self.rules = matcher()
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def round(self) -> list[dict[str, str]]:
        "The problems of the next round, as VS Code finds them."
        pattern, background = self.rules["pattern"], self.rules["background"]
        names = {number: name for name, number in pattern.items() if name != "regexp"}
        line = self.process.stdout.readline()
        assert re.search(background["beginsPattern"], line), line
        found = []
        while not re.search(background["endsPattern"], line := self.process.stdout.readline()):
            assert line, "the command has ended"
            match = re.search(pattern["regexp"], line.rstrip("\n"))
            assert match, line
            found.append({name: match[number] for number, name in names.items()})
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        self.process.stdout.close()
        return self.process.wait(60)


def line_of(book: Path, problem: dict[str, str]) -> str:
    "The line of the file that a problem names."
    return book.read_text().splitlines()[int(problem["line"]) - 1]


@pytest.mark.slow
def test_rounds_as_an_editor_reads_them(make_project):
    folder = make_project(notebooks={"00_train.ipynb": CELLS})
    book = folder / "nbs" / "00_train.ipynb"
    watch = Watch(folder)
    try:
        (problem,) = watch.round()
        assert problem["file"] == "nbs/00_train.ipynb" and problem["severity"] == "error"
        assert "`helper` is defined only by cell 3" in problem["message"], problem
        assert "print(helper)" in line_of(book, problem) and problem["column"] == "1"

        notebook = nbformat.read(book, 4)
        notebook.cells[3].source = "#| export\ndef helper():\n    return RTE"
        nbformat.write(notebook, book)
        (problem,) = watch.round()
        assert "`RTE`" in problem["message"] and "return RTE" in line_of(book, problem), problem

        notebook.cells[3].source = "#| export\nhelper = 3"
        nbformat.write(notebook, book)
        assert watch.round() == []

        book.write_text('{"cells": [')
        (problem,) = watch.round()
        assert "damaged" in problem["message"] and problem["file"] == "nbs/00_train.ipynb", problem
    finally:
        assert watch.stop() == 130


def test_options_that_do_not_go_together(make_project):
    folder = make_project(nbdev=0, git=False)
    command = [sys.executable, "-m", "fsdl_dev", "check", "--watch", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 2 and "leave out --json" in done.stderr
