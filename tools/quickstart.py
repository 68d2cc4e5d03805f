"""Execute the quickstart notebook in a fresh kernel, showing what it prints while it runs.

usage: quickstart.py NOTEBOOK
The executed copy goes to _quickstart/; the last lines say where it, the run directory and the curve are.
"""

import os
import re
import sys
import time
from pathlib import Path

import nbformat
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

ROOT = Path(__file__).resolve().parent.parent


class ThisPython(KernelSpecManager):
    """The kernel of this environment, whatever kernels the user has registered under the same name."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(**get_kernel_dict(extra_arguments=["--IPKernelApp.log_level=ERROR"]))


class ThisKernelManager(AsyncKernelManager):
    def __init__(self, **options):
        super().__init__(kernel_spec_manager=ThisPython(), **options)


class LiveClient(NotebookClient):
    """Runs a notebook and prints its headings and outputs as they come."""

    shown_at = 0.0

    def process_message(self, message, cell, cell_index):
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            print(content["text"], end="", flush=True)
        elif kind in ("display_data", "execute_result"):
            data = content["data"]
            print(data.get("text/markdown", data.get("text/plain", "")), flush=True)
        elif kind == "update_display_data" and time.monotonic() - self.shown_at > 2:
            self.shown_at = time.monotonic()  # a card that redraws itself: a line now and then is enough
            lines = content["data"].get("text/plain", "").splitlines()
            print(
                next((line for line in lines if "step " in line and "%" in line), "".join(lines[:1]))[:120],
                flush=True,
            )
        return super().process_message(message, cell, cell_index)


def heading(cell) -> str:
    """The first heading of a markdown cell, or ""."""
    match = re.search(r"^#+ +(.+)$", cell.source, re.M) if cell.cell_type == "markdown" else None
    return match[1] if match else ""


def failing_cell(notebook) -> str:
    """Number, section and first line of the cell that failed, for a person who looks for it."""
    section = ""
    for number, cell in enumerate(notebook.cells, 1):
        section = heading(cell) or section
        if any(output.output_type == "error" for output in cell.get("outputs", [])):
            lines = [line for line in cell.source.splitlines() if line.strip() and not line.startswith("#|")]
            return f"cell {number}, under {section!r}: {lines[0] if lines else ''}"
    return "a cell that never answered (the kernel died)"


def main() -> int:
    source = (ROOT / sys.argv[1]).resolve()
    if not source.exists():
        print(f"quickstart: there is no {source.relative_to(ROOT)}", file=sys.stderr)
        return 2
    from fsdl_dev.core.settings import find_project

    runs = find_project(source).store / "runs"
    before = set(runs.iterdir()) if runs.exists() else set()
    executed = ROOT / "_quickstart" / "quickstart.ipynb"
    executed.parent.mkdir(exist_ok=True)
    notebook = nbformat.read(source, as_version=4)
    print(f"quickstart: executing {source.relative_to(ROOT)} in a fresh kernel\n", flush=True)

    def announce(cell, cell_index):
        if heading(cell):
            print(f"\n-- {heading(cell)}", flush=True)

    client = LiveClient(
        notebook,
        kernel_manager_class=ThisKernelManager,
        timeout=None,
        on_cell_start=announce,
        resources={"metadata": {"path": str(source.parent)}},
    )
    started, failure = time.time(), None
    try:
        client.execute(env=dict(os.environ, FSDL_NOTEBOOK=str(source), PYTHONUNBUFFERED="1"))
    except (CellExecutionError, DeadKernelError) as error:
        failure = error
    except (
        KeyboardInterrupt,
        AssertionError,
    ):  # nbclient answers Ctrl-C by ending its kernel, and then misses it
        print(
            "\nquickstart: interrupted; a launched run goes on, `.venv/bin/fsdl runs` lists it",
            file=sys.stderr,
        )
        return 130
    finally:
        nbformat.write(notebook, executed)
    if failure:
        print(f"\n{failure}\nquickstart: FAILED in {failing_cell(notebook)}", file=sys.stderr)
        print(f"  executed so far: {executed}", file=sys.stderr)
        return 1
    new = sorted(set(runs.iterdir()) - before) if runs.exists() else []
    if not new:
        print("\nquickstart: FAILED, the notebook ran to its end but left no run", file=sys.stderr)
        return 1
    curves = new[-1] / "curves.png"
    print(f"\nquickstart: done in {time.time() - started:.0f} s")
    print(f"  executed notebook  {executed}")
    print(f"  run directory      {new[-1]}")
    print(f"  curve              {curves if curves.exists() else 'MISSING: ' + str(curves)}")
    return 0 if curves.exists() else 1


if __name__ == "__main__":
    sys.exit(main())
