"""The magics in a real kernel, as JupyterLab speaks to it: what a person types, and what is answered."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import commit_all, write_notebook
from following import until
from kernel import PATIENCE, Kernel

from fsdl_dev.api import load_run
from fsdl_dev.core.rundir import list_run_ids
from fsdl_dev.core.settings import find_project

TRAIN = (
    "#| export\nlr = 0.1\ndef train(steps: int = 3, pause: float = 0.0, lr: float = 0.1):\n    import time\n "
    "   for step in range(steps):\n        print('step', step, flush=True)\n        time.sleep(pause)\n   "
    " return lr * steps"
)
LAUNCH = "%%fsdl_launch --on test {}\n#| eval: false\n{}"


class NotebookKernel(Kernel):
    "A kernel that was started for a notebook's file, spoken to with cell ids."

    def __init__(self, notebook: Path, environment: dict, session: bool = True):
        environment = {**os.environ, "JPY_SESSION_NAME": str(notebook), **environment}
        if not session:
            del environment["JPY_SESSION_NAME"]
        super().__init__(notebook.parent, env=environment)

    def complete(self, line: str, beneath: str = "") -> list[str]:
        reply = self.client.complete(f"{line}\n{beneath}", len(line), reply=True, timeout=PATIENCE)
        return reply["content"]["matches"]

    def kill(self) -> None:
        os.kill(self.manager.provisioner.pid, 9)
        self.stop()


class Desk:
    "A person at a notebook: its cells, its file, its kernels, and the runs that came of it."

    def __init__(self, root: Path):
        self.root, self.path, self.cells, self.kernels = root, root / "nbs" / "00_train.ipynb", {}, []

    def write(self, *sources: str) -> "Desk":
        write_notebook(self.path, ["# Train\n\n> A study.", "#| default_exp train", *sources])
        self.cells = {
            cell["id"]: "".join(cell["source"])
            for cell in json.loads(self.path.read_text())["cells"]
            if cell["cell_type"] == "code"
        }
        return self

    def kernel(self, session: bool = True, **environment: str) -> NotebookKernel:
        self.kernels.append(NotebookKernel(self.path, environment, session))
        return self.kernels[-1]

    def open(self, **environment: str) -> str:
        "A new kernel, and every cell but launch cells."
        kernel = self.kernel(**environment)
        said = kernel.run("%load_ext fsdl_dev")
        for cell_id, source in self.cells.items():
            said += "" if source.startswith("%%") else kernel.run(source, cell_id)
        return said

    def put(self, options: str = "", body: str = "train(2)") -> tuple[str, str]:  # the cell's source and id
        "Write the launch cell and save."
        source = LAUNCH.format(options, body)
        content = json.loads(self.path.read_text())
        last = content["cells"][-1]
        if not "".join(last["source"]).startswith("%%fsdl_launch"):
            content["cells"].append(
                {
                    "cell_type": "code",
                    "id": "launch",
                    "metadata": {},
                    "outputs": [],
                    "execution_count": None,
                    "source": source,
                }
            )
        else:
            last["source"] = source
        self.path.write_text(json.dumps(content))
        return source, content["cells"][-1]["id"]

    def launch(self, options: str = "", body: str = "train(2)") -> str:
        "Write the launch cell, save, run it."
        return self.kernels[-1].run(*self.put(options, body))

    def ask(self, line: str) -> str:
        return self.kernels[-1].run(line)

    def run(self, reference: str = "last"):
        return load_run(reference, self.root)

    def count(self) -> int:
        return len(list_run_ids(find_project(self.root).store))

    def wait(self, true, what: str = "") -> None:
        until(true, what, PATIENCE)

    def shown(self, line: str) -> str:
        "The HTML that a line shows."
        kernel = self.kernels[-1]
        answers = kernel.answers(kernel.send(line))
        return "".join(content.get("data", {}).get("text/html", "") for _, content in answers)

    def refused(self, said: str, *texts: str) -> None:
        assert all(text in said for text in texts), said
        assert "most recent call last" not in said, said
        assert self.count() == 0, "a refusal leaves no run"


@pytest.fixture
def desk(make_project, tmp_path):
    made: list[Desk] = []

    def make(*sources: str, **options) -> Desk:
        options = {"folder": tmp_path / "mon projet é", "export": False, "git": False} | options
        root = make_project(
            notebooks={
                "00_train.ipynb": ["# Train\n\n> A study.", "#| default_exp train", *(sources or (TRAIN,))]
            },
            **options,
        )
        made.append(Desk(root).write(*(sources or (TRAIN,))))
        return made[-1]

    yield make
    for one in made:
        for kernel in one.kernels:
            kernel.stop()
        for name in list_run_ids(find_project(one.root).store):
            run = one.run(name)
            run.cancel()
            run.wait(timeout=PATIENCE, progress=False)


# --- the ordinary day ---------------------------------------------------------------------------------------


def test_launch_look_wait_and_go_on(desk):
    "One notebook in a folder with blanks and an accent: every magic, once."
    desk = desk()
    commit_all(desk.root)
    said = desk.open()
    assert "runs go to 'local'" in said and "is running" not in said

    said = desk.launch(
        "--param lr=0.5 --tag task=toy --as run --wait", "print('the end is', train(2, lr=lr), 'at', lr)"
    )
    run = desk.run()
    assert (
        f"{run.words}  " in said
        and "task=toy" in said
        and run.state == "succeeded"
        and "the end is 1.0 at 0.5" in run.logs()
    )
    assert "<div" not in said and run.words in desk.ask("run") and "✔" in desk.ask("run")
    assert (
        desk.ask("run.state").strip() == "'succeeded'"
        and "task=toy" in desk.ask("%fsdl_runs")
        and "No runs fit" in desk.ask("%fsdl_runs --state failed")
    )
    assert "the end is" in desk.ask("%fsdl_logs") and "no log of rank 3" in desk.ask(
        "%fsdl_logs last --rank 3"
    )
    assert "ended already: succeeded" in desk.ask("%fsdl_cancel") and str(desk.path) in desk.ask(
        "%fsdl_notebook"
    )
    assert (
        "✓ slots" in desk.ask("%fsdl_doctor")
        and "✓ kernel" in desk.ask("%fsdl_check")
        and "✓ tests" in desk.ask("%fsdl_check")
    )
    for magic in ("%%fsdl_launch --help\n1", "%fsdl_launch --help", "%fsdl_runs --help", "%fsdl_attach -h"):
        assert desk.ask(magic).lstrip().startswith(f"Usage: {magic.split()[0]}")
    assert desk.count() == 1

    # what is there after %load_ext, and what ? shows
    assert "0." in desk.ask("fsdl_dev.__version__") and "✓ kernel" in desk.ask("%fsdl_check --param lr=0.5")
    assert "no attribute" not in desk.ask("%fsdl_check --cell 3")
    wrong = desk.ask("%fsdl_check --param lrr=0.5")
    assert "does not use a parameter 'lrr'" in wrong and "Did you mean 'lr'?" in wrong
    for magic, option in (
        ("logs", "--rank"),
        ("launch", "--resume"),
        ("check", "--param"),
        ("plan", "--gpus"),
    ):
        said = desk.ask(f"print(get_ipython().find_line_magic('fsdl_{magic}').__doc__)")
        assert option in said and "Example: %" in said, said

    # a second, long one: interrupting the wait detaches
    desk.launch("--as long", "train(100000, 0.05)")
    words = desk.run().words
    waiting = desk.kernels[-1].send("long.wait()")
    desk.kernels[-1].read(waiting, until=words)
    desk.kernels[-1].manager.interrupt_kernel()
    said = desk.kernels[-1].read(waiting)
    assert (
        f"Detached. {words} goes on running." in said
        and f"%fsdl_attach {words}" in said
        and "most recent call last" not in said
    )
    log = desk.run(words).dir.log(0)
    for _ in (1, 2):
        before = log.read_text() if log.exists() else ""
        desk.wait(lambda before=before: log.exists() and log.read_text() != before, "for a run that goes on")
    assert desk.run(words).state == "running"

    # Tab
    complete = desk.kernels[-1].complete
    assert complete("%%fsdl_launch --param ", "train(2, lr=lr)") == ["lr="]
    assert "lr=" in complete("%fsdl_launch smallproj.train:train --param ")
    assert complete("%%fsdl_launch --resume ")[0] == "last" == complete("%%fsdl_launch --after ")[0]
    assert complete("%%fsdl_launch --pr") == ["--procs", "--profile"] and complete("%%fsdl_launch --on ") == [
        "local",
        "test",
    ]
    assert complete("%fsdl_check --on ") == ["local", "test"] and complete("%%fsdl_launch --time ") == [""]
    assert complete("%fsdl_check --cell ") == ["Train"] == complete("%fsdl_launch 00_train.ipynb --cell ")
    assert complete("%fsdl_attach ") == ["last", words, run.words] and complete(
        f"%fsdl_cancel {words[:-1]}"
    ) == [words]

    # the kernel dies, the run does not; the next kernel of this notebook says how to get it back
    desk.kernels[-1].kill()
    said = desk.open()
    assert f"{words} is running" in said
    line = next(text for text in said.splitlines() if words in text).partition(":")[2].strip()
    assert line == f"%fsdl_attach {words}" and "running" in desk.ask(line)
    assert desk.ask("run.state").strip() == "'running'"
    assert f"{words} was asked to save and stop" in desk.ask(f"%fsdl_cancel {words}")
    desk.wait(lambda: desk.run(words).state == "cancelled")


def test_what_a_launch_line_gets_wrong(desk):
    desk = desk()
    desk.open()
    for options, body, *texts in (
        ("--prcs 2", "train()", "No such option '--prcs'", "%%fsdl_launch --help"),
        ("--as 'a b'", "train()", "'a b' cannot be a name", "--as run"),
        ("--param 'lr=1", "lr", "The line cannot be read", "close the quotation mark"),
        ("--param lrr=1", "train(lr)", "does not use a parameter 'lrr'", "Did you mean 'lr'?"),
        ("--param lr=fast", "train(lr)", "'fast' (str)", "takes float", "--param lr=0.1"),
        ("--param pause=1", "train()", "does not use a parameter 'pause'"),
        ("--procs 0", "train()", "at least 1, not 0"),
        ("--procs 999", "train()", "999 process slots"),
        ("--time soon", "train()", "'soon' is not a duration"),
        ("--on mars", "train()", "no target 'mars'", "--on local"),
        ("--resume nobody", "train()", "There are no runs yet"),
        ("--data nowhere", "train()", "no data at 'nowhere'"),
        ("", "tarin()", "no cell defines `tarin`", "Did you mean 'train'?"),
        ("--param lr=1", "train(lrr)", "no cell defines `lrr`", "Did you mean 'lr'?"),
        ("", "train(1, lrr=2)", "`train` takes no parameter `lrr`", "cell 3", "line 3", "write `lr=`"),
        ("", "fsdl_dev.Trainr()", "no attribute `Trainr`", "line 3", "write `fsdl_dev.Trainer`"),
        ("", "def f(:", "invalid syntax"),
        ("", "x = 1\n%cd ..", "'%cd' needs a notebook", "line 4", "cell of its own"),
    ):
        desk.refused(desk.launch(options, body), *texts)
    desk.refused(desk.ask("%fsdl_launch nowhere.py"), "no file 'nowhere.py'")
    desk.refused(desk.ask("%fsdl_attach nobody"), "There are no runs yet")
    desk.refused(desk.ask("%fsdl_notebook nowhere.ipynb"), "nowhere.ipynb")


def test_what_a_launch_cell_mistypes(desk):
    desk = desk()
    desk.open()
    desk.ask("import pytorch_lightning")
    said = desk.launch("--param lrr=1", "trian(2, lr=lr)\nfsdl_dev.Trainer(\n    max_epoch=2, ema=0.9)")
    here = "nbs/00_train.ipynb, cell 3 “Train”, line "
    desk.refused(
        said, f"{here}3", f"{here}5", "write `train` instead of `trian`", "--param lr=1   (it takes: lr"
    )
    desk.refused(said, "`fsdl_dev.Trainer` takes no parameter `max_epoch`. Did you mean `max_epochs=`?")
    desk.refused(desk.launch("", "trn(2)"), "; or pass it: --param trn=...")


def test_a_stale_cell_is_refused_or_run_again(desk):
    desk = desk()
    commit_all(desk.root)
    desk.open()
    desk.launch()
    desk.run().wait(progress=False)
    before = desk.count()
    desk.path.write_text(desk.path.read_text().replace("lr = 0.1", "lr = 0.3"))
    said = desk.launch(body="print(train(1, lr=lr))")
    assert (
        "Not launched" in said
        and "nbs/00_train.ipynb, cell 2 “lr”" in said
        and "run cell 2 again" in said
        and desk.count() == before
    )
    assert "cell 2" in desk.ask("%fsdl_check")
    shown = desk.shown("%fsdl_check")
    assert '<a href="#cell-id=cell02">[3] nbs/00_train.ipynb, cell 2 “lr”</a> under “Train”' in shown
    assert 'fix:</span> run <a href="#cell-id=cell02">cell 2</a> again' in shown, shown
    said = desk.launch("--rerun --wait --no-test", "print(train(1, lr=lr))")
    assert "Not launched" not in said and "0.3" in desk.run().logs(), said
    desk.launch("--wait --no-test", "train('many')")
    card = desk.shown(f"%fsdl_attach {desk.run().words}")
    assert (
        '<a href="#cell-id=cell02">[9] nbs/00_train.ipynb, cell 2 “lr”, line 5</a> under “Train”' in card
    ), card


def test_a_launch_waits_for_the_save(desk):
    "A new launch cell is not in the file yet: it launches once the notebook is saved. Another one is half typed."
    desk = desk(TRAIN, LAUNCH.format("", "train("))
    desk.open()
    source = LAUNCH.format("--wait", "print('the end is', train(2))")
    launch = desk.kernels[-1].send(source, "launch")
    desk.kernels[-1].read(launch, until="to save the notebook (Ctrl+S)")
    assert desk.count() == 0
    assert not (desk.root / ".fsdl" / "cache" / "probe.json").exists()  # nothing slow came before
    write_notebook(
        desk.path, [*(["# Train", "#| default_exp train"]), *list(desk.cells.values())[1:], source]
    )
    content = json.loads(desk.path.read_text())
    content["cells"][-1]["id"] = "launch"
    desk.path.write_text(json.dumps(content))
    said = desk.kernels[-1].read(launch)
    assert "Not launched" not in said and "the end is" in desk.run().logs(), said
    # a front end that does not say which cell runs has no page to be saved, and is not waited for
    said = desk.kernels[-1].run(LAUNCH.format("", "print('another', train(2))"))
    assert "✗ saved" in said and "Waiting" not in said, said


def test_everything_that_is_wrong_is_told_at_once(desk):
    desk = desk()
    settings = desk.root / "pyproject.toml"
    settings.write_text(settings.read_text() + '\n[tool.fsdl_dev]\nrequired_tags = ["task"]\n')
    desk.open()
    desk.path.write_text(desk.path.read_text().replace("lr = 0.1", "lr = 0.3"))
    said = desk.launch("--param lrr=1 --param pause=1 --resume nobody --procs 999", "train(1, lr=lr)")
    desk.refused(
        said,
        "run cell 2 again",
        "parameter 'lrr'",
        "parameter 'pause'",
        "tag 'task' is required",
        "There are no runs yet",
        "999 process slots",
        "6 checks failed",
    )


def test_without_a_file_it_says_how_to_name_it(desk):
    desk = desk()
    kernel = desk.kernel(session=False)
    assert "runs go to 'local'" in kernel.run("%load_ext fsdl_dev")
    for source in desk.cells.values():
        kernel.run(source)
    said = kernel.run(LAUNCH.format("", "train(1)"))
    desk.refused(said, "%fsdl_notebook")
    assert "00_train.ipynb" in kernel.run("%fsdl_notebook 00_train.ipynb")


# --- gates
# ------------------------------------------------------------------------------------------------------


def test_gates_refuse_in_order(desk):
    """Required tags, then secrets in saved outputs, then a failing test; each leaves no run.

    --no-test launches and is recorded.
    """
    desk = desk(TRAIN, "assert train(2) == 7")
    settings = desk.root / "pyproject.toml"
    plain = settings.read_text()
    settings.write_text(plain + '\n[tool.fsdl_dev]\nrequired_tags = ["task", "dataset"]\n')
    desk.open()
    desk.refused(desk.launch(), "tag 'task' is required", "add --tag task=...", "tag 'dataset' is required")
    assert desk.kernels[-1].complete("%%fsdl_launch --tag d") == ["dataset="]
    key = "AKIA" + "IOSFODNN7" + "EXAMPLQ"
    content = json.loads(desk.path.read_text())
    content["cells"][2]["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": f"the key is {key}\n"}
    ]
    desk.path.write_text(json.dumps(content))
    said = desk.launch("--tag task=toy --tag dataset=none")
    desk.refused(said, "✗ secrets", "saved output", "cell 2 “lr”", "clear this cell's output")
    assert key not in said
    content["cells"][2]["outputs"] = []
    desk.path.write_text(json.dumps(content))
    desk.refused(
        desk.launch("--tag task=toy --tag dataset=none"),
        "✗ tests: A test fails",
        "assert train(2) == 7",
        "nbs/00_train.ipynb, cell 3",
        "--no-test launches without",
    )
    said = desk.launch("--tag task=toy --tag dataset=none --no-test --wait")
    assert "tests skipped by --no-test" in said and desk.run().state == "succeeded"
    assert any(
        check.name == "tests" and "--no-test" in check.message and check.verdict == "warn"
        for check in desk.run().job.launch.checks
    )


def test_a_test_may_not_launch_for_real(desk):
    desk = desk()
    desk.open(IN_TEST="1")
    source = LAUNCH.format("", "train(1)").replace("--on test ", "")
    content = json.loads(desk.path.read_text())
    content["cells"].append(
        {
            "cell_type": "code",
            "id": "launch",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": source,
        }
    )
    desk.path.write_text(json.dumps(content))
    desk.refused(desk.kernels[-1].run(source, "launch"), "IN_TEST", "--on test")


# --- projects that are not as they should be
# ------------------------------------------------------------------


def test_no_nbdev_project(desk):
    desk = desk(nbdev=0)
    desk.open()
    desk.refused(desk.launch(), "not an nbdev project", "no settings.ini", "fsdl init")
    (desk.root / "hello.py").write_text("print('hello from a script')\n")
    said = desk.ask("%fsdl_launch ../hello.py --on test --wait --as run")
    assert desk.run().state == "succeeded" and "hello from a script" in desk.run().logs(), said


def test_a_cell_that_python_cannot_read(desk):
    desk = desk(TRAIN, "#| export\ndef other(:\n    pass")
    desk.open()
    desk.refused(
        desk.launch(),
        "Python cannot read this cell",
        "nbs/00_train.ipynb, cell 3 “other”, line 2",
        "fix cell 3",
    )
    desk.path.write_text(desk.path.read_text()[:-40])
    desk.refused(desk.kernels[-1].run(LAUNCH.format("", "train(1)"), "launch"), "damaged", "save it again")


@pytest.mark.parametrize("missing", ["git", "commit"])
def test_no_git_or_no_commit_is_a_warning(desk, tmp_path, missing):
    desk = desk()
    environment = {}
    if missing == "git":
        (tmp_path / "bin").mkdir()
        for name in ("sh", "env", "uname"):
            (tmp_path / "bin" / name).symlink_to(shutil.which(name))
        environment["PATH"] = str(tmp_path / "bin")
    else:
        subprocess.run(["git", "init", "-q"], cwd=desk.root, check=True)
    desk.open(**environment)
    said = desk.launch("--wait")
    assert desk.run().state == "succeeded" and "warning: snapshot:" in said, said
    assert "git is not installed" in said if missing == "git" else "no commit yet" in said


def test_a_folder_that_cannot_be_written(desk, monkeypatch):
    desk = desk(export=True)
    cell = desk.put("", "train(1)")
    commit_all(desk.root)
    monkeypatch.delenv("FSDL_STORE")
    mount = (
        ["mount", "--bind", str(desk.root), str(desk.root)],
        ["mount", "-o", "remount,bind,ro", str(desk.root)],
    )
    if (
        os.name != "posix"
        or os.geteuid()
        or any(subprocess.run(command, capture_output=True).returncode for command in mount)
    ):
        pytest.skip("READ-ONLY FOLDER NOT TRIED: it needs root and the right to mount")
    try:
        desk.open()
        said = desk.kernels[-1].run("%fsdl_launch 00_train.ipynb --on test")
        desk.refused(said, "cannot be written", "Read-only file system", "FSDL_STORE=")
        assert "Traceback" not in desk.kernels[-1].run(*cell)
    finally:
        desk.kernels.pop().stop()
        subprocess.run(["umount", "-l", str(desk.root)], check=True)


# --- Lightning: trackers, cancel, resume
# ---------------------------------------------------------------------------

TINY = """#| export
import time

import pytorch_lightning as pl
import torch

import fsdl_dev


class Tiny(pl.LightningModule):
    "A line with one weight, and steps that take their time."

    def __init__(self, lr: float = 0.01):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        time.sleep(0.03)
        loss = ((self.layer(batch[0]) - 3 * batch[0]) ** 2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


def data():
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.linspace(-1, 1, 160)[:, None]), batch_size=4
    )"""
FIT = (
    "trainer = fsdl_dev.Trainer(max_steps=steps, log_every_n_steps=1)\ntrainer.fit(Tiny(),"
    " data())\nprint('ended at step', trainer.global_step)"
)


@pytest.mark.tier("long")
@pytest.mark.slow
def test_trackers_cancel_and_resume(desk):
    desk = desk(TINY)
    commit_all(desk.root)
    desk.open()
    desk.launch("--param steps=100000 --wandb --tensorboard --as first", FIT)
    first = desk.run()
    desk.wait(lambda: (first.refresh().progress.step or 0) > 50 or not first.view.alive, first.tail(20))
    assert first.state == "running", first.logs()
    desk.ask(f"%fsdl_cancel {first.words}")
    desk.wait(lambda: not first.view.alive)
    assert (
        first.state == "cancelled" and first.last is not None and first.last.exists and first.last.step >= 50
    )

    # the trackers: a process beside the worker wrote the files, and the card has the line that uploads them
    desk.wait(lambda: {"wandb", "tensorboard"} <= {told.name for told in first.refresh().services.trackers})
    command = next(told.sync for told in first.refresh().services.trackers if told.sync)
    folder = Path(command.removeprefix("wandb sync ").strip("'"))
    assert list(folder.glob("*.wandb")) and folder.is_relative_to(first.path / "trackers")
    assert command in desk.ask("first")
    assert list((first.path / "trackers" / "tensorboard").glob("events.out*"))

    # the same job goes on from where it stopped
    desk.ask(
        f"%fsdl_launch --resume {first.words} --on test --param steps={first.last.step + 25} --wait --as"
        " second"
    )
    second = desk.run()
    assert second.state == "succeeded", second.logs()
    assert f"ended at step {first.last.step + 25}" in second.logs() and set(second.job.loggers) == {
        "wandb",
        "tensorboard",
    }
    steps = (
        [int(step) for step in second.metrics["step"]]
        if "step" in second.metrics
        else [int(step) for step in second.metrics.index]
    )
    assert min(steps) >= first.last.step - 1


@pytest.mark.slow
def test_a_sweep_of_a_cell(desk):
    "The options of a search in a launch cell: a mistyped range is refused, and the trials get the cell's parameter."
    desk = desk()
    desk.open()
    body = "fsdl_dev.log(gain=train(2, lr=lr))"
    desk.refused(
        desk.launch("--each lr=0.1...0.3 --trials 2 --best max:gain", body), "is not a range", "--each lr="
    )
    said = desk.launch("--each lr=0.1..0.3 --trials 2 --slots 1 --best max:gain --as sweep --wait", body)
    assert "2 runs at most, 1 at once on test" in said, said
    assert "True" in desk.ask("sweep.state == 'succeeded' and 0.2 <= sweep.result['gain'] <= 0.6"), said
