"""A project of nbdev 3 launches like one of nbdev 2: a kernel of its own environment, its own export, the same
agreement.
"""

import ast
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from repository import ROOT

CELLS = [
    "#| default_exp train",
    "%load_ext fsdl_dev",
    "#| export\nLR = 1e-3",
    "#| export\ndef fit():\n    return LR * 2",
    "assert fit() == 2e-3",
    "%%fsdl_launch --on test --as run --wait\nprint('trained with', fit())",
]


@pytest.fixture(scope="session")
def python3_kernel(nbdev3_python):
    """The nbdev 3 environment, with everything else that this one has behind it on its path."""
    here = Path(sysconfig.get_paths()["purelib"])
    there = Path(next(nbdev3_python.parent.parent.glob("lib/python*/site-packages")))
    (there / "behind.pth").write_text(f"{Path(__file__).parents[2]}\n{here}\n")

    class ThatPython(KernelSpecManager):
        def get_kernel_spec(self, kernel_name):
            spec = get_kernel_dict(extra_arguments=["--IPKernelApp.log_level=ERROR"])
            return KernelSpec(**{**spec, "argv": [str(nbdev3_python), *spec["argv"][1:]]})

    return ThatPython


def execute(client, source: str, cell_id: str) -> str:
    """All that a cell prints, errors too."""
    content = {
        "code": source,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": False,
    }
    message = client.session.msg("execute_request", content, metadata={"cellId": cell_id})
    client.shell_channel.send(message)
    said = ""
    while True:
        reply = client.get_iopub_msg(timeout=400)
        if reply["parent_header"].get("msg_id") != message["header"]["msg_id"]:
            continue
        content = reply["content"]
        said += content.get("text", "") + "\n".join(content.get("traceback", []))
        if content.get("execution_state") == "idle":
            return said


@pytest.mark.slow
def test_launch_cell_of_an_nbdev3_project(make_project, nbdev3_python, python3_kernel, monkeypatch):
    project = make_project(nbdev=3, python=nbdev3_python, notebooks={"00_train.ipynb": CELLS})
    notebook = project / "nbs" / "00_train.ipynb"
    monkeypatch.setenv("FSDL_NOTEBOOK", str(notebook))
    manager = KernelManager(kernel_spec_manager=python3_kernel())
    manager.start_kernel(cwd=str(notebook.parent))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=300)
        assert "3." in execute(client, "import nbdev; print(nbdev.__version__)", "version")[:2]
        for number, source in enumerate(CELLS):
            said = execute(client, source, f"cell{number:02d}")
            assert "Error" not in said and "Not launched" not in said, said
        assert "trained with 0.002" in execute(client, "print(run.state, run.logs(0))", "logs")

        notebook.write_text(notebook.read_text().replace("1e-3", "1e-4"))  # edited and saved, not run again
        said = execute(client, CELLS[-1], "cell05")
        assert "Not launched" in said and "cell 3" in said, said

        said = execute(client, CELLS[-1].replace("--wait", "--wait --rerun"), "cell05")
        assert "The launch cell in the file" in said  # the option was typed and not saved
        notebook.write_text(
            notebook.read_text().replace("--wait", "--wait --rerun").replace("fit() == 2e-3", "fit() == 2e-4")
        )
        said = execute(client, CELLS[-1].replace("--wait", "--wait --rerun"), "cell05")
        assert "running cell 3" in said and "Not launched" not in said, said
        assert "trained with 0.0002" in execute(client, "print(run.state, run.logs(0))", "logs")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def code_of(package: Path) -> dict[str, str]:
    """Each module's code, without its docstring: nbdev 3 adds an address there."""
    found = {}
    for path in package.rglob("*.py"):
        if path.name == "_modidx.py":
            continue
        tree = ast.parse(path.read_text())
        documented = tree.body and isinstance(tree.body[0], ast.Expr)
        found[path.relative_to(package).as_posix()] = ast.dump(
            ast.Module(tree.body[1:] if documented else tree.body, [])
        )
    return found


@pytest.mark.slow
def test_nbdev3_exports_this_repository(nbdev3_python, tmp_path):
    shutil.copytree(ROOT / "nbs", tmp_path / "nbs", symlinks=True)
    shutil.copytree(ROOT / "fsdl_dev", tmp_path / "fsdl_dev", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "settings.ini", "_quarto.yml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    before = code_of(tmp_path / "fsdl_dev")
    (tmp_path / "fsdl_dev" / "core" / "events.py").unlink()
    subprocess.run([nbdev3_python.with_name("nbdev-export")], cwd=tmp_path, check=True)
    assert code_of(tmp_path / "fsdl_dev") == before
