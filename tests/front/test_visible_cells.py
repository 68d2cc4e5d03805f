"""A tutorial that says so runs by its visible cells alone: what a reader types, in an empty folder, in order."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from repository import ROOT, notebooks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SAYS = "# what a reader sees of this page runs by itself"  # in a hidden cell of the page
TYPED = [
    one
    for one in notebooks()
    if "tutorials" in one.path.parts and any(SAYS in cell.source for cell in one.cells)
]


def visible(notebook) -> nbformat.NotebookNode:
    "The code cells that the site shows."
    sources = [
        cell.source for cell in notebook.cells if cell.kind == "code" and "hide" not in cell.directives
    ]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    kernel = {"display_name": "python3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def test_some_pages_say_so():
    assert len(TYPED) >= 2


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
