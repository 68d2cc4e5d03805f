"""The planner's fronts: a strategy on its way to the ranks, `%fsdl_plan`, `fsdl plan` and `fsdl_dev.plan`."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from conftest import commit_all
from kernel import Kernel

import fsdl_dev
from fsdl_dev.cli.main import main
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.rundir import list_run_ids
from fsdl_dev.core.settings import find_project
from fsdl_dev.launcher.prepare import prepare
from fsdl_dev.launcher.request import LaunchRequest

ASKED = (
    "import os\nprint('strategy', os.environ.get('FSDL_STRATEGY'), 'of rank', os.environ.get('RANK', 0))\n"
)


@pytest.fixture
def project(make_project, monkeypatch):
    "A project with a script that says its strategy, and with a launch cell that does the same."
    root = make_project(notebooks={"00_train.ipynb": ["# Train\n\n> A study.", "#| default_exp train",
        "#| export\nlr = 0.1",
                                                      '## Ask\n',
                                                      '%%fsdl_launch --on test --procs 2 --strategy "fsdp=2"\n'
                                                      f'#| eval: false\n{ASKED}']}, git=False)  # fmt: skip
    (root / "ask.py").write_text(ASKED)
    commit_all(root)
    monkeypatch.chdir(root)
    monkeypatch.setenv("FSDL_STRATEGY", "of the shell that launches")
    return root


def said(run) -> list[str]:
    "What the ranks printed, sorted."
    run.wait(timeout=300, progress=False)
    assert run.state == "succeeded", run.failure.text()
    return sorted(
        line
        for log in run.dir.logs.glob("rank*.log")
        for line in log.read_text().splitlines()
        if line.startswith("strategy")
    )


# --- --strategy ---------------------------------------------------------------------------------------------


def test_a_strategy_reaches_the_ranks_and_a_resumed_run_keeps_it(project):
    run = fsdl_dev.launch("ask.py", procs=2, strategy="fsdp=2", on="test", no_test=True, say=None)
    assert said(run) == ["strategy fsdp=2 of rank 0", "strategy fsdp=2 of rank 1"] and "fsdp=2" in str(
        run.dir.job()
    )
    assert said(fsdl_dev.launch("ask.py", on="test", no_test=True, say=None)) == ["strategy None of rank 0"]
    with pytest.raises(FsdlError, match="'fsdp=2' is for 2 processes, and there are 3"):
        fsdl_dev.launch(resume=run.words, procs=3, on="test", no_test=True, say=None)
    again = prepare(None, LaunchRequest(resume=run.words)).job
    assert (
        again.strategy == "fsdp=2"
        and prepare(None, LaunchRequest(resume=run.words, procs=3, strategy="ddp")).job.strategy == "ddp"
    )


@pytest.mark.slow
def test_a_saved_launch_cell_brings_its_own_and_the_command_line_wins(project):
    cell = "nbs/00_train.ipynb"
    assert (
        said(fsdl_dev.launch(cell, cell="Ask", on="test", no_test=True, say=None))[0]
        == "strategy fsdp=2 of rank 0"
    )
    assert (
        said(fsdl_dev.launch(cell, cell="Ask", strategy="tp=2", on="test", no_test=True, say=None))[1]
        == "strategy tp=2 of rank 1"
    )


@pytest.mark.parametrize(("options", "words"), [
    (["--procs", "2", "--strategy", "fsdp=4"], ["is for 4 processes, and there are 2", "--procs 4"]),
    (["--procs", "2", "--nodes", "2", "--strategy", "fsdp=3 tp"],
        ["shares out 3 processes, and 4 is not a multiple", "numbers whose product is 4", "--nodes 2"]),
    (["--procs", "2", "--strategy", "fspd"], ["Unknown word 'fspd'", "Did you mean 'fsdp'?"]),
    (["--strategy", "zero2,offload"], ["Offloading to the host's memory is done by FSDP2"]),
    (["--strategy", ""], ["Unknown word ''"]),
    (["--procs", "2", "--strategy", "fsdp=two"], ["needs a whole number"]),
], ids=["too many", "nodes", "misspelt", "offload", "empty", "no number"])  # fmt: skip
def test_words_that_do_not_fit_are_refused_before_anything_is_submitted(project, options, words):
    done = CliRunner().invoke(main, ["launch", "ask.py", "--on", "test", "--no-test", *options])
    assert done.exit_code == 2 and all(word in done.output for word in words), done.output
    assert not list_run_ids(find_project(project).store)


def test_reading_a_strategy_loads_no_torch(project):
    code = (
        "import sys; from fsdl_dev.core.job import Job, Resources; Job('script', 'x', script='x',"
        " resources=Resources(procs=4), strategy='fsdp=2 tp=2'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=project).returncode == 0


# --- fsdl plan ----------------------------------------------------------------------------------------------

MODEL = """#| export
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import pytorch_lightning as pl
import fsdl_dev


class Net(pl.LightningModule):
    "A small network whose width is chosen."

    def __init__(self, width: int = 64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
        )

    def training_step(self, batch, index):
        inputs, targets = batch
        return nn.functional.cross_entropy(self.layers(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def points(batch_size: int = 8):
    return DataLoader(
        TensorDataset(torch.randn(100, 16), torch.zeros(100, dtype=torch.long)),
        batch_size=batch_size,
        shuffle=True,
    )
"""
TRAINING = (
    'trainer = fsdl_dev.Trainer(max_epochs=1, precision="bf16-mixed")\nwidth = 32 *'
    ' scale\ntrainer.fit(Net(width), points(batch_size=4))\nraise SystemExit("it trained")'
)


@pytest.fixture
def models(make_project, monkeypatch):
    "A project whose notebook exports a model and its data, and has a launch cell that trains them."
    cell = f'%%fsdl_launch --on test --procs 4 --strategy "fsdp" --param scale=2\n#| eval: false\n{TRAINING}'
    root = make_project(
        notebooks={
            "00_train.ipynb": ["# Train\n\n> A study.", "#| default_exp train", MODEL, "## Train", cell]
        },
        git=False,
    )
    commit_all(root)
    monkeypatch.chdir(root)
    return root


def fsdl(*words: str, code: int = 0, folder=None) -> tuple[str, str]:
    "The command in a process of its own: what it printed to each."
    command = [
        sys.executable,
        "-c",
        "import sys; from fsdl_dev.cli.main import main; sys.argv[0] = 'fsdl'; main()",
        *words,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400)
    assert done.returncode == code and "Traceback" not in done.stderr, (
        f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout, done.stderr


@pytest.mark.tier("long")
@pytest.mark.slow
def test_a_plan_in_a_terminal(models):
    name = models.name.replace("-", "_")
    said, _ = fsdl(
        "plan",
        f"{name}.train:Net",
        f"{name}.train:points",
        "--gpus",
        "4",
        "--gpu",
        "24GB",
        "--param",
        "width=128",
        folder=models,
    )
    for text in (
        "→ one",
        "✓ ddp=4",
        "can run a sweep",
        "4 times fewer steps",
        "sgd-momentum",
        "8 samples for each",
        "the fullest process holds",
        "largest batch:",
        "launch it:     %%fsdl_launch\n",
    ):
        assert text in said, said
    told = json.loads(
        fsdl("plan", "nbs/00_train.ipynb", "--cell", "Train", "--gpu", "24GB", "--json", folder=models)[0]
    )
    assert (
        told["strategy"] == "fsdp=4"
        and told["simplest"] == "one"
        and told["precision"] == "bf16-mixed"
        and told["samples"] == 4
        and told["devices"]["count"] == 4
    )
    width = 64
    assert told["parameters"] == 16 * width + width + width * width + width + 2 * width + 2
    memory = told["memory"]
    assert (
        memory["total"]
        == sum(memory[part] for part in ("parameters", "gradients", "optimizer", "activations", "buffers"))
        - memory["host"]
    )
    assert [row["strategy"] for row in told["considered"]][0] == "one" and {
        row["collective"] for row in told["traffic"]
    } == {"all-gather", "reduce-scatter"}


def test_what_people_ask_of_a_plan_and_cannot_have(models):
    name = models.name.replace("-", "_")
    net, data = f"{name}.train:Net", f"{name}.train:points"
    wrong = [
        (["plan", net, data, "--gpus", "4", "--gpu", "a10000"], 2, ["Unknown device 'a10000'", "--gpu 80GB"]),
        (["plan", net, data, "--gpus", "4"], 2, ["this machine has none to look at", "--gpu a100-80gb"]),
        (["plan", net, "--gpu", "24GB"], 2, ["A plan needs a batch", "--sample 1024"]),
        (["plan", f"{name}.train:Nett", data, "--gpu", "24GB"], 4, ["has no 'Nett'", "Did you mean 'Net'?"]),
        (["plan", f"{name}.trian:Net", data, "--gpu", "24GB"], 4, [f"no module '{name}.trian'"]),
        (["plan", "Net", data, "--gpu", "24GB"], 4, ["A terminal has no name 'Net'", "package.module:Net"]),
        (["plan", data, data, "--gpu", "24GB"], 2, ["not a torch module"]),
        (["plan", net, data, "--gpu", "24GB", "--param", "wdith=3"], 2, ["cannot be called", "wdith"]),
        (["plan", net, data, "--gpu", "24GB", "--gpus", "4", "--strategy", "fsdp=3"], 2,
            ["is for 3 processes, and there are 4", "--gpus and --nodes"]),
        (["plan", net, data, "--gpu", "24GB", "--gpus", "4", "--strategy", "tp"], 2, ["tensor parallel"]),
        (["plan", net, data, "--gpu", "24GB", "--precision", "fp8"], 2, ["precision 'fp8'", "bf16-mixed"]),
        (["plan", "nbs/00_train.ipynb", "--cell", "Trian", "--gpu", "24GB"], 4,
            ["No launch cell is called 'Trian'", "launch cells there: cell"]),
        (["plan", net, data, "--on", "nowhere"], 4, ["no target 'nowhere'"]),
        (["plan", net, data, "--gpu", "24GB", "--host-memory", "much"], 2,
            ["'much' is not a size", "--host-memory 5GB"]),
        (["plan", net, data, "--gpu", "24GB", "--host-memory", "64"], 2,
            ["'64' has no unit", "--host-memory 64GB", "--host-memory 64GiB"]),
        (["plan", net, data, "--gpu", "24G"], 2, ["counts by 1000 or by 1024", "24GiB"]),
        (["plan", net, data, "--gpu", "24GB", "--reserve", "100%"], 2, ["'100%' is not a share", "--reserve 10%"]),
        (["plan", net, data, "--gpu", "24GB", "--reserve", "10"], 2, ["'10' is not a share"]),
        (["plan", net, data, "--gpu", "24GB", "--optimizer", "rmsprop-centred"], 2,
            ["Did you mean 'rmsprop-centered'?"]),
        (["plan", net, data, "--gpu", "24GB", "--param", "width=45000", "--host-memory", "16GB"], 2,
            ["The host's memory would have to hold 24.3 GB, and has 16.0 GB", "24.3 GB of memory in each machine"]),
    ]  # fmt: skip
    poor = []
    for words, code, texts in wrong:
        done = CliRunner().invoke(main, words)
        missing = [text for text in texts if text.lower() not in done.output.lower()]
        if done.exit_code != code or missing or "Traceback" in done.output:
            poor.append(
                f"fsdl {' '.join(words)}: {done.exit_code} instead of {code}, {missing} not"
                f" said:\n{done.output}{done.exception!r}"
            )
    assert not poor, "\n\n".join(poor)


def test_the_hosts_memory_and_the_reserve_are_asked_for(models):
    name = models.name.replace("-", "_")
    large = [
        "plan",
        f"{name}.train:Net",
        f"{name}.train:points",
        "--gpu",
        "24GB",
        "--param",
        "width=45000",
    ]  # 24 GB with SGD's momentum

    def told(*options: str) -> dict:
        done = CliRunner().invoke(main, [*large, "--json", *options])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    unchecked, checked, filled = (
        told(),
        told("--host-memory", "64GB"),
        told("--reserve", "5%", "--gpu", "30GB"),
    )
    assert (
        unchecked["strategy"] == checked["strategy"] == "fsdp=1 offload"
        and unchecked["optimizer"] == "sgd-momentum"
    )
    assert (
        "24.3 GB in the host's memory of each node, which was not checked" in unchecked["reason"]
        and "24.3 GB of 64.0 GB in the host's memory" in checked["reason"]
    )
    assert (
        filled["devices"]["reserve"] == 0.05
        and filled["devices"]["usable"] == 28_500_000_000
        and filled["strategy"] == "one"
    )
    assert told("--gpu", "30GB", "--reserve", "0.2")["strategy"] == "fsdp=1 offload"
    text = CliRunner().invoke(main, large).output
    assert (
        "host's memory: not known, so not checked; --host-memory" in text
        and "--host-memory" not in CliRunner().invoke(main, [*large, "--host-memory", "64GB"]).output
    )


def test_a_module_that_cannot_say_its_optimizer_is_planned_with_adamw_and_told(models):
    name = models.name.replace("-", "_")
    (models / "own.py").write_text(f"import torch\nfrom {name}.train import *\n\nclass Wants(Net):\n"
                                   "    def configure_optimizers(self):\n        return self.trainer.nothing\n\n"
                                   "class Loop(Net):\n    def configure_optimizers(self):\n"
                                   "        return [torch.optim.RMSprop(self.parameters(), centered=True)], []\n"
                                   )  # fmt: skip
    found = [
        json.loads(
            CliRunner()
            .invoke(main, ["plan", f"own:{module}", f"{name}.train:points", "--gpu", "24GB", "--json"])
            .output
        )
        for module in ("Wants", "Loop")
    ]
    assert [(one["optimizer"], bool(one["note"])) for one in found] == [
        ("adamw", True),
        ("rmsprop-centered", False),
    ], found
    assert "so this is planned with adamw" in CliRunner().invoke(
        main, ["plan", "own:Wants", f"{name}.train:points", "--gpu", "24GB"]
    ).output.replace("\n  ", " ")


@pytest.mark.tier("long")
@pytest.mark.slow
def test_four_billion_parameters_are_planned_in_a_gigabyte():
    "The weights alone would take 16 GB."
    code = """
import resource
import fsdl_dev
from fsdl_dev.train.text import CausalLM

config = {
    "hidden_size": 8192,
    "num_hidden_layers": 2,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "vocab_size": 128256,
}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
plan = fsdl_dev.plan(
    CausalLM,
    params={"model": "llama", "model_settings": {"config": config}},
    sample="2048",
    batch=1,
    gpus=8,
    nodes=4,
    gpu="h100",
)
assert plan.planning.facts.count > 3.5e9, plan.planning.facts.count
assert "<svg" in plan._repr_html_() and len(plan.memories()) == 32
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < 1_000_000, done.stdout  # kB, the import of torch among it


# --- %fsdl_plan in a kernel ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_plan_in_a_kernel_touches_nothing(models):
    kernel = Kernel(
        models / "nbs", env={**os.environ, "JPY_SESSION_NAME": str(models / "nbs" / "00_train.ipynb")}
    )
    try:
        kernel.run("%load_ext fsdl_dev")
        kernel.run(MODEL)
        kernel.run(
            "model, data = Net(), points()\nbefore = [w.clone() for w in model.parameters()]\nstate ="
            " torch.get_rng_state()"
        )
        shown = dict(kernel.answers(kernel.send("%fsdl_plan model data --gpus 4 --gpu 24GB --as plan")))
        page = shown["execute_result"]["data"]
        assert (
            "→ one" in page["text/plain"]
            and 'aria-label="one: what the process holds' in page["text/html"]
            and "<details" in page["text/html"]
        )
        assert (
            kernel.run(
                "str(plan.layout), all(map(torch.equal, before, model.parameters())), bool((state =="
                " torch.get_rng_state()).all()), model._trainer"
            ).strip()
            == "('one', True, True, None)"
        )
        said = kernel.run(
            f"scale = 2\n{TRAINING}".replace(
                "scale = 2\n", "%%fsdl_plan --gpus 2 --gpu 24GB --param scale=1\n"
            )
        )
        said = " ".join(said.split())  # its lines are as long as the screen is wide
        assert (
            "→ one" in said
            and "✓ ddp=2" in said
            and "4 samples for each process" in said
            and "it trained" not in said
        )
        assert "NameError" in kernel.run("trainer"), "what the cell assigns is not in the kernel"
        assert "fsdp=4" in kernel.run("%fsdl_plan --cell Train --gpu 24GB")
        for line, text in (
            ("modle data --gpu 24GB", "Did you mean 'model'?"),
            ("before data --gpu 24GB", "modules here: model"),
            ("", "Nothing to plan was named"),
            ("model --gpu 24GB", "A plan needs a batch"),
            ("model data --gup 24GB", "No such option '--gup'"),
        ):
            said = kernel.run(f"%fsdl_plan {line}")
            assert text in said and "most recent call last" not in said, said
        assert kernel.run("%fsdl_plan --help").startswith("Usage: %fsdl_plan")
    finally:
        kernel.stop()
