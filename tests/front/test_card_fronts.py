"""The card where no browser is: nbclient, IPython in a terminal, plain Python, and Ctrl-C while waiting."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from repository import SUPPORT

FEED = SUPPORT / "feed_run.py"

# a live card registers itself as the display of runs
OPEN = "import fsdl_dev.cards.live; from fsdl_dev.records.run import open_run"


def feed(store: Path, *options: str) -> tuple[subprocess.Popen, str]:
    "A process that plays a worker, and the name of its run."
    process = subprocess.Popen(
        [sys.executable, str(FEED), str(store), *options], stdout=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    process.stdout.close()


def test_nbclient_saves_the_final_card(tmp_path):
    """A live card shown in one cell is final once a later cell has waited for the run; no widget is left in
    the notebook.
    """
    worker, name = feed(tmp_path, "--steps", "100000", "--until", str(tmp_path / "enough"))
    notebook = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    notebook.cells = [
        nbformat.v4.new_code_cell(source)
        for source in (
            f"{OPEN}\nrun = open_run({str(tmp_path)!r}, {name!r})",
            "run",
            f"open({str(tmp_path / 'enough')!r}, 'w').close()\nrun.wait(progress=False);",
            "run",
        )
    ]
    try:
        NotebookClient(notebook, timeout=300, startup_timeout=300).execute()
    finally:
        end(worker)
    for cell in (1, 3):
        shown = [output["data"] for output in notebook.cells[cell].outputs if output.get("data")]
        assert [set(data) for data in shown] == [{"text/html", "text/plain"}]
        assert (
            "succeeded" in shown[0]["text/html"]
            and "data:image/svg+xml" in shown[0]["text/html"]
            and "succeeded" in shown[0]["text/plain"]
        )


def test_terminal_and_plain_python_show_text(tmp_path):
    worker, name = feed(tmp_path, "--steps", "5", "--pause", "0", "--end", "failed")
    try:
        worker.wait(240)
    finally:
        end(worker)
    environment = {**os.environ, "COLUMNS": "70", "PYTHONUTF8": "1", "IPYTHONDIR": str(tmp_path / "ipython")}
    code = f"{OPEN}; run = open_run({str(tmp_path)!r}, {name!r})"
    for command in (
        [
            sys.executable,
            "-m",
            "IPython",
            "--simple-prompt",
            "--no-banner",
            "-c",
            f"{code}; from IPython.display import display; display(run)",
        ],
        [sys.executable, "-c", f"{code}; from fsdl_dev.cards.live import show; show(run, blocking=True)"],
    ):
        said = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert said.returncode == 0, said.stderr
        assert "✘" in said.stdout and "Expected input batch_size" in said.stdout and "<div" not in said.stdout
        card = said.stdout[said.stdout.index("✘") :]
        assert all(len(line) <= 70 for line in card.splitlines())


def test_control_c_detaches_and_stops_nothing(tmp_path):
    worker, name = feed(tmp_path, "--steps", "100000", "--pause", "0.05")
    try:
        code = (
            f"{OPEN}; import time; run, nap = open_run({str(tmp_path)!r},"
            f" {name!r}), time.sleep\ntime.sleep = lambda seconds: (print('waiting', flush=True),"
            " nap(seconds))\nrun.wait(progress=False)"
        )
        waiting = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert waiting.stdout.readline() == "waiting\n"
        waiting.send_signal(signal.SIGINT)
        _, said = waiting.communicate(timeout=240)
        assert "Detached" in said and "fsdl attach" in said and waiting.returncode != 0
        assert worker.poll() is None
    finally:
        end(worker)
