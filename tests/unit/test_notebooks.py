"""Every notebook runs from its first cell to its last.

One that passed here, and nothing of what it depends on has changed since, is skipped (ALL=1 runs it).
"""

import os

import pytest
from notebook_run import fingerprint, has_passed, note_pass, run_notebook
from repository import notebooks

BEFORE = dict(os.environ)  # a notebook makes its own store and state


@pytest.fixture(autouse=True)
def isolation():
    """Nothing is set for a notebook that its reader would not have."""


def parameters():
    """Every notebook, and once more with its slow cells where it has some."""
    for notebook in notebooks():
        name = notebook.name.removesuffix(".ipynb")
        yield pytest.param(notebook, "", id=name)
        if any("slow" in cell.directives for cell in notebook.cells):
            yield pytest.param(notebook, "slow", id=f"{name} slow cells", marks=pytest.mark.slow)


@pytest.mark.tier("long", "planner/07_* slow cells")  # a plan of seven billion parameters
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("notebook", "flags"), list(parameters()))
def test_notebook(notebook, flags):
    digest = fingerprint(notebook, flags)
    if has_passed(digest) and not os.environ.get("ALL"):
        pytest.skip("passed before, and nothing that it depends on has changed (ALL=1 runs it)")
    problem = run_notebook(notebook.path, flags, BEFORE)
    assert not problem, problem
    note_pass(digest)
