"""A notebook with its file and a real kernel, as JupyterLab drives them."""

import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Cell:
    """One cell of the file."""

    id: str
    kind: str  # code, markdown or raw
    source: str

    @property
    def exported(self) -> bool:
        """Whether nbdev writes it into the module."""
        return self.kind == "code" and bool(re.search(r"^#\s*\|\s*export", self.source, re.M))


@dataclass
class Ran:
    """What came of one run."""

    text: str
    error: str = ""  # the exception's name; "Timeout"


@dataclass
class Played:
    """A notebook that can be saved and run."""

    path: Path
    python: str  # the kernel's interpreter
    code: str  # a checkout of fsdl_dev that comes before an installed one; "" for the installed one
    project: Path
    cells: list[Cell] = field(default_factory=list)
    manager: KernelManager | None = None

    def save(self) -> None:
        """Write the file, as Ctrl+S does."""
        cells = []
        for cell in self.cells:
            more = {"execution_count": None, "outputs": []} if cell.kind == "code" else {}
            source = cell.source.splitlines(True)
            cells.append({"cell_type": cell.kind, "id": cell.id, "metadata": {}, "source": source} | more)
        about = {"kernelspec": {"display_name": "python3", "language": "python", "name": "python3"}}
        content = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
        self.path.write_text(json.dumps(content, indent=1), encoding="utf-8")
        time.sleep(0.05)  # the file is older than what runs next

    def start(self) -> None:
        """Start the kernel in the notebook's folder."""
        places = [str(self.project), *([self.code] if self.code else [])]
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join(places),
            "OMP_NUM_THREADS": "1",
            "MPLBACKEND": "Agg",
            "IPYTHONDIR": str(self.project / ".ipython"),
            "JPY_SESSION_NAME": str(self.path),
        }
        command = [self.python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        manager = KernelManager(kernel_name="python3")
        manager._kernel_spec = KernelSpec(argv=command, display_name="python3", language="python")
        manager.start_kernel(cwd=str(self.path.parent), env=env)
        self.manager, self.client = manager, manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    def run(self, source: str, cell_id: str, limit: float) -> Ran:
        """Run a cell; it is interrupted after `limit` seconds."""
        if self.manager is None:
            self.start()
        asked = {"code": source, "silent": False, "store_history": True, "user_expressions": {}}
        asked |= {"allow_stdin": False, "stop_on_error": False}
        message = self.client.session.msg("execute_request", asked, metadata={"cellId": cell_id})
        self.client.shell_channel.send(message)
        texts, error, end = [], "", time.monotonic() + limit
        while True:
            try:
                reply = self.client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
            except Empty:
                self.manager.interrupt_kernel()
                end, limited, error = time.monotonic() + 5, error == "Timeout", "Timeout"
                if limited:
                    break
                continue
            if reply["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            kind, content = reply["msg_type"], reply["content"]
            if kind == "status" and content["execution_state"] == "idle":
                break
            if kind == "stream":
                texts.append(content["text"])
            elif kind == "error":
                error = error or content["ename"]
                texts.append("\n".join(content["traceback"]) or content["evalue"])
        return Ran(COLOURS.sub("", "".join(texts)), error)

    def stop(self) -> None:
        """End the kernel."""
        if self.manager is not None:
            self.client.stop_channels()
            self.manager.shutdown_kernel(now=True)
            self.manager = None
