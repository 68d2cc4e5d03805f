"""Execute notebooks in a fresh kernel and keep what they show: python tools/outputs.py NOTEBOOK...

The outputs are saved as any machine would show them: plain text, a run's last line of progress
only, and `~` for the throwaway folder in which a tutorial works. The author of every commit and run is Ada.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from quickstart import ROOT, ThisKernelManager

THROWAWAY = re.compile(rf"{re.escape(tempfile.gettempdir())}/tmp\w{{8}}")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PROGRESS = re.compile(r"^(\w+-\w+)  (?:queued|starting|running)\b.*\n(?=\1  )", re.M)


def portable(found):
    """A saved output without what belongs to this machine."""
    if isinstance(found, str):
        text = COLOUR.sub("", THROWAWAY.sub("~", found)).replace("\r\n", "\n")
        return PROGRESS.sub("", text.replace(str(ROOT), "~/fsdl_dev"))
    if isinstance(found, dict):
        return {key: portable(value) for key, value in found.items()}
    return [portable(value) for value in found] if isinstance(found, list) else found


def execute(path: Path) -> None:
    """Execute a notebook where it lies and save its outputs. Raises CellExecutionError."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        identity = Path(folder, "gitconfig")
        identity.write_text("[user]\nname = Ada\nemail = ada@example.org\n[init]\ndefaultBranch = main\n")
        environment = {name: value for name, value in os.environ.items() if name != "IN_TEST"}
        environment |= {"GIT_CONFIG_GLOBAL": str(identity), "FSDL_NOTEBOOK": str(path), "NO_COLOR": "1"}
        client = NotebookClient(
            notebook,
            kernel_manager_class=ThisKernelManager,
            timeout=None,
            record_timing=False,
            coalesce_streams=True,
            store_widget_state=False,
            resources={"metadata": {"path": str(path.parent)}},
        )
        client.execute(env=environment)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [nbformat.from_dict(portable(dict(output))) for output in cell.outputs]
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = None
    notebook.metadata.pop("language_info", None)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"outputs: executing {name} ...", flush=True)
        execute(Path(name).resolve())
