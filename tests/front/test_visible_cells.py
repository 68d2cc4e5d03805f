"""A tutorial runs by its visible cells alone: what a reader types, in an empty folder, in order. A page that needs
something else says so in a hidden cell, with what it needs.
"""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from repository import ROOT, notebooks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NEEDS = "# what a reader sees of this page needs "  # and what: in a hidden cell of the page
TUTORIALS = [one for one in notebooks() if "tutorials" in one.path.parts]


def needs(notebook) -> str:
    "What a page needs beside an empty folder; empty where it needs nothing."
    lines = (line for cell in notebook.cells for line in cell.source.splitlines() if line.startswith(NEEDS))
    return next(lines, "").removeprefix(NEEDS)


TYPED = [one for one in TUTORIALS if not needs(one)]


def visible(notebook) -> nbformat.NotebookNode:
    "The code cells that the site shows."
    sources = [
        cell.source for cell in notebook.cells if cell.kind == "code" and "hide" not in cell.directives
    ]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    kernel = {"display_name": "python3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def test_most_pages_need_nothing():
    assert {one.path.stem for one in TUTORIALS if needs(one)} <= {"00_quickstart"}


@pytest.mark.parametrize("notebook", TYPED, ids=lambda one: one.path.stem)
def test_visible_cells_run(notebook, tmp_path, monkeypatch):
    folder, settings = tmp_path / "here", tmp_path / "gitconfig"
    folder.mkdir()
    settings.write_text("[user]\nname = Ada Lovelace\nemail = ada@example.org\n")
    monkeypatch.delenv("IN_TEST", raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FSDL_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    page = visible(notebook)
    client = NotebookClient(page, timeout=300, resources={"metadata": {"path": str(folder)}})
    client.execute()  # raises with the cell and its traceback
    said = "".join(out.get("text", "") for cell in page.cells for out in cell.outputs)
    assert "command not found" not in said and "not found: fsdl" not in said, said[-2000:]
