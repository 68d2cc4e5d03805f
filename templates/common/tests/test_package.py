"""Every module of the package can be imported, and every notebook says which module it writes."""

import importlib
import json
import pkgutil
from pathlib import Path

import pytest

import my_project

ROOT = Path(__file__).parent.parent
MODULES = [found.name for found in pkgutil.walk_packages(my_project.__path__, "my_project.")]


@pytest.mark.parametrize("module", MODULES)
def test_module_can_be_imported(module):
    importlib.import_module(module)


def test_launch_cells_are_not_run_by_tests():
    """`#| eval: false` keeps a test run from launching, and what needs a run from failing without one."""
    for path in sorted((ROOT / "nbs").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if source.startswith("%%fsdl_launch"):
                assert "#| eval: false" in source, f"{path.name}: {source.splitlines()[0]}"
