"""The main job as `make quickstart` runs it, in a clone: trained by two processes, brought back, over 95 % of
held-out digits right.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest
from conftest import commit_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def test_quickstart(working_copy, tmp_path):
    clone = tmp_path / "clone"
    shutil.copytree(working_copy, clone, symlinks=True)
    commit_all(clone)  # as in a clone: what is committed counts as tested
    environment = {**os.environ, "JUPYTER_DATA_DIR": str(tmp_path / "jupyter"), "PYTHONPATH": str(clone)}
    command = [sys.executable, "tools/quickstart.py", "nbs/tutorials/00_quickstart.ipynb"]
    with subprocess.Popen(
        command,
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=1200)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-6000:]
    accuracies = [float(text) for text in re.findall(r"(\d\d\.\d+) ?%", said)]
    assert accuracies and max(accuracies) > 95, said[-6000:]

    places = dict(re.findall(r"^  (executed notebook|run directory|curve) +(.+)$", said, re.M))
    executed, run, curve = (Path(places[name]) for name in ("executed notebook", "run directory", "curve"))
    assert (
        executed.is_relative_to(clone) and curve.parent == run and curve.read_bytes().startswith(b"\x89PNG")
    )
    shown = [
        output for cell in nbformat.read(executed, as_version=4).cells for output in cell.get("outputs", [])
    ]
    assert not [output for output in shown if output.output_type == "error"]
    assert any("succeeded" in output.get("data", {}).get("text/html", "") for output in shown), (
        "the executed notebook holds the finished card"
    )
    assert list((run / "checkpoints").glob("*.ckpt")) and len(list((run / "logs").glob("rank*.log"))) == 2
