"""A real kernel, spoken to as a front end does: with or without cell ids."""

from collections.abc import Iterator
from pathlib import Path

from jupyter_client.manager import start_new_kernel

PATIENCE = 300  # seconds; a kernel that is silent for longer has failed


class Kernel:
    """A fresh kernel of this Python in a folder."""

    patience = PATIENCE

    def __init__(self, folder: Path, **more):
        for left in (2, 1, 0):
            try:
                self.manager, self.client = start_new_kernel(
                    kernel_name="python3", startup_timeout=PATIENCE, cwd=str(folder), **more
                )
                break
            except RuntimeError:  # somebody took one of the ports that Jupyter had chosen for it
                if not left:
                    raise

    def send(self, source: str, cell_id: str | None = None, silent: bool = False) -> str:
        """Ask for a cell to be run; the request's name."""
        content = {
            "code": source,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        message = self.client.session.msg(
            "execute_request", content, metadata={"cellId": cell_id} if cell_id else {}
        )
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def answers(self, name: str) -> Iterator[tuple[str, dict]]:
        """What comes for a request until the kernel is idle again: (kind, content)."""
        while True:
            reply = self.client.get_iopub_msg(timeout=self.patience)
            if reply["parent_header"].get("msg_id") != name:
                continue
            if reply["msg_type"] == "status" and reply["content"]["execution_state"] == "idle":
                self.client.get_shell_msg(timeout=self.patience)
                return
            yield reply["msg_type"], reply["content"]

    def words(self, kind: str, content: dict) -> str:
        """The text of an answer: what was printed, shown or raised."""
        shown = (
            content["data"].get("text/plain", "") + "\n" if kind in ("display_data", "execute_result") else ""
        )
        return (
            content["text"]
            if kind == "stream"
            else "\n".join(content["traceback"])
            if kind == "error"
            else shown
        )

    def read(self, name: str, until: str | None = None) -> str:
        """What a request printed, showed and raised, as text; with `until`, up to the first output that has that."""
        text = ""
        for kind, content in self.answers(name):
            text += self.words(kind, content)
            if until and until in text:
                break
        return text

    def run(self, source: str, cell_id: str | None = None, silent: bool = False) -> str:
        """Run a cell; what it printed, showed and raised."""
        return self.read(self.send(source, cell_id, silent))

    def stop(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
