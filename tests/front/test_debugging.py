"""A launch cell in the kernel under a debugger, the profile of a run, and a shell in a run's code."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from kernel import Kernel
from rehearsal_planted import PLAIN, fill

import fsdl_dev
from fsdl_dev.cli.main import main
from fsdl_dev.share.shell import plan_shell

pytestmark = pytest.mark.slow

MODEL = """#| export
def double(x):
    y = x * 2
    return y"""
LAUNCH = "%%fsdl_launch --debug --param n=4\nfirst = double(n)\nsecond = first / (n - 4)"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder whose launches go to the test target."""
    (tmp_path / "pyproject.toml").write_text('[tool.fsdl_dev]\ntarget = "test"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def kernel(project):
    """A kernel in that folder, with the extension."""
    kernel = Kernel(project)
    try:
        kernel.run("%load_ext fsdl_dev")
        yield kernel
    finally:
        kernel.stop()


class Debugger:
    """What JupyterLab's debugger sends to a kernel."""

    def __init__(self, kernel: Kernel):
        self.client, self.number = kernel.client, 0

    def ask(self, command: str, **arguments) -> dict:
        """A request of the debug adapter protocol, and its answer."""
        self.number += 1
        content = {"type": "request", "seq": self.number, "command": command, "arguments": arguments}
        message = self.client.session.msg("debug_request", content)
        self.client.control_channel.send(message)
        while True:
            reply = self.client.get_control_msg(timeout=60)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return reply["content"]

    def stop_at(self, cell: str, line: int) -> None:
        """Set a breakpoint in a cell."""
        path = self.ask("dumpCell", code=cell)["body"]["sourcePath"]
        answer = self.ask("setBreakpoints", source={"path": path}, breakpoints=[{"line": line}], lines=[line])
        assert answer["success"], answer

    def stopped(self) -> dict:
        """Wait until the kernel stands at a breakpoint: the innermost frame."""
        while True:
            told = self.client.get_iopub_msg(timeout=120)
            if told["msg_type"] == "debug_event" and told["content"].get("event") == "stopped":
                thread = told["content"]["body"]["threadId"]
                return self.ask("stackTrace", threadId=thread)["body"]["stackFrames"][0]

    def attach(self) -> None:
        self.ask(
            "initialize",
            clientID="test",
            adapterID="",
            pathFormat="path",
            linesStartAt1=True,
            columnsStartAt1=True,
        )
        self.ask("attach")


def test_breakpoints_stop_in_an_exported_cell_and_in_the_launch_cell(kernel):
    kernel.run(MODEL)
    debugger = Debugger(kernel)
    debugger.attach()
    debugger.stop_at(MODEL, 3)
    debugger.stop_at(LAUNCH, 3)
    debugger.ask("configurationDone")
    name = kernel.send(LAUNCH)
    frame = debugger.stopped()
    assert (frame["line"], frame["name"]) == (3, "double")
    debugger.ask("continue", threadId=1)
    frame = debugger.stopped()
    assert frame["line"] == 3 and "double" not in frame["name"]
    debugger.ask("continue", threadId=1)
    assert "ZeroDivisionError" in kernel.read(name)


def test_the_failing_frame_is_there_after_an_error(kernel):
    kernel.run(MODEL)
    assert "ZeroDivisionError" in kernel.run(LAUNCH)
    frame = "import sys, traceback; print(traceback.extract_tb(sys.last_traceback)[-1].line)"
    assert "second = first / (n - 4)" in kernel.run(frame)
    assert "needs a cell of its own" in kernel.run("%%fsdl_launch --debug\n%time x = 1")


def test_the_failure_of_a_run_again_in_the_kernel(project, kernel):
    text = """import pytorch_lightning as pl, torch, fsdl_dev
from torch.utils.data import DataLoader, TensorDataset
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, index):
        if self.global_step == 7:
            raise ValueError(f"step {self.global_step} is ill")
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
def data():
    return DataLoader(TensorDataset(torch.ones(20, 2)), 4)
"""
    body = "fsdl_dev.Trainer(max_epochs=3).fit(Net(), data())"
    (project / "train.py").write_text(f"{text}{body}\n")
    run = fsdl_dev.launch("train.py", say=None, wait=True)
    assert run.state == "failed" and run.last.step == 7
    kernel.run(text)
    answer = kernel.run(f"%%fsdl_launch --debug --resume {run.words}\n{body}")
    assert "From step 7" in answer and "step 7 is ill" in answer, answer
    whole = kernel.run(f"%%fsdl_launch --debug\n{body}")
    assert "The cell reached its end" in whole, whole


def test_the_profile_of_a_run_that_fails(project):
    slow = "import time\n\n\ndef slow():\n    time.sleep(0.3)\n\n\n"
    (project / "train.py").write_text(f"{slow}{fill(PLAIN, EPOCH='slow()', AFTER='open(chr(47) + chr(0))')}")
    run = fsdl_dev.launch("train.py", args=["--epochs", "6"], profile=True, say=None, wait=True)
    assert run.state == "failed"
    answer = CliRunner().invoke(main, ["profile", run.words])
    assert answer.exit_code == 0 and "train.py, line 5" in answer.output and "slow" in answer.output, (
        answer.output
    )
    told = json.loads(CliRunner().invoke(main, ["profile", run.words, "--json"]).stdout)
    assert told["lines"] and Path(told["trace"]).stat().st_size > 1000 and "aten::" in told["operators"]
    (project / "other.py").write_text("print(1)\n")
    other = fsdl_dev.launch("other.py", say=None, wait=True)
    refused = CliRunner().invoke(main, ["profile", other.words])
    assert refused.exit_code == 4 and "--profile" in refused.output


def test_a_shell_in_the_code_of_a_run(project):
    (project / "train.py").write_text("print('as it was')\n")
    run = fsdl_dev.launch("train.py", say=None, wait=True)
    (project / "train.py").write_text("raise SystemExit(9)\n")
    plan = plan_shell(run, command="python train.py", here=True)
    assert plan.where == "this machine" and plan.words[0] == sys.executable
    answer = CliRunner().invoke(main, ["shell", run.words, "--here", "-c", "python train.py && exit 5"])
    assert answer.exit_code == 5
    assert "needs a terminal" in CliRunner().invoke(main, ["shell", run.words]).output
    for manifest in (run.store / "snapshots").glob("*.json"):
        manifest.unlink()
    gone = CliRunner().invoke(main, ["shell", run.words, "-c", "ls"])
    assert gone.exit_code == 4 and "is gone" in gone.output and "git checkout" in gone.output, gone.output
