"""Hours and money of a plan: by real runs of a real project, through the command, the magic's function and Python."""

import json

import pytest
from click.testing import CliRunner
from conftest import commit_all

import fsdl_dev
from fsdl_dev.cli.main import main
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.settings import find_project
from fsdl_dev.records.search.store import RunStore

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
        self.layers = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 2))

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def points(samples: int = 4000):
    return DataLoader(TensorDataset(torch.randn(samples, 16), torch.zeros(samples, dtype=torch.long)), batch_size=8)
"""
TRAINING = """trainer = fsdl_dev.Trainer(max_epochs=1, accelerator="cpu")
trainer.fit(Net(width), points())
"""
FAILING = """raise ValueError("the labels are missing")
"""
BOOK = "nbs/00_train.ipynb"


@pytest.fixture
def project(make_project, monkeypatch):
    "A project with a launch cell that trains 500 steps, and one that fails before it does."
    cells = ["# Train\n\n> A study.", "#| default_exp train", MODEL]
    cells += ["## Train", f"%%fsdl_launch --on test --param width=32\n#| eval: false\n{TRAINING}"]
    cells += ["## Broken", f"%%fsdl_launch --on test\n#| eval: false\n{FAILING}"]
    root = make_project(name="pricedproj", notebooks={"00_train.ipynb": cells}, git=False)
    with open(root / "pyproject.toml", "a") as file:
        file.write('\n[tool.fsdl_dev.prices]\ncurrency = "USD"\ntest = 3.6\n')
    commit_all(root)
    monkeypatch.chdir(root)
    return root


def planned(*words: str, code: int = 0) -> dict:
    "The plan of the launch cell as the command prints it for a program."
    done = CliRunner().invoke(main, ["plan", BOOK, "--cell", "Train", *words, "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def refused(*words: str) -> str:
    done = CliRunner().invoke(main, ["plan", *words])
    assert done.exit_code in (2, 4) and "Traceback" not in done.output, done.output
    return done.output


@pytest.mark.slow
def test_a_probe_measures_what_is_unknown_and_the_runs_that_follow_feed_the_plan(project):
    before = planned("--gpus", "cpu:1,h100:1")
    assert {row["basis"] for row in before["rows"]} == {"unknown"} and "--probe 50" in " ".join(
        before["says"]
    )
    probed = planned("--probe", "40")
    assert [row["basis"] for row in probed["rows"]] == ["measured"]
    row = probed["rows"][0]
    probe = RunStore(find_project().store).query(limit=1)[0]
    assert (probe.state, probe.total, probe.tags["probe"]) == (
        "succeeded",
        500,
        40,
    ) and 40 <= probe.step < 500
    # one epoch of 4,000 samples in batches of 8, as the trainer itself said
    assert row["steps"] == 500 and row["where"] == "test" and row["hour"]["amount"] == 3.6
    cores = row["cores"]

    run = fsdl_dev.launch(BOOK, cell="Train", no_test=True, say=None).wait(progress=False)
    assert run.state == "succeeded", run.failure.text()
    plan = fsdl_dev.plan(
        BOOK, cell="Train", gpus=f"cpu:{cores},cpu:{2 * cores},h100:1,tpu-v5e:8", max_cost=1e-6, say=None
    )
    bases = {str(row): row.step.basis for row in plan.rows}
    assert list(bases.values()) == ["measured", "scaled", "unknown", "unknown"], bases
    assert plan.rows[0].step.runs == 2 and "2 runs of this code" in plan.rows[0].step.words
    assert (
        plan.is_over(plan.rows[0])
        and "Everything is over the budget" in repr(plan)
        and "<s>" in plan._repr_html_()
    )
    hours = plan.rows[0].hours
    assert abs(plan.rows[0].cost.middle - 3.6 * hours.middle) < 1e-9 and hours.low < hours.middle < hours.high

    wider = planned("--gpus", f"cpu:{cores}", "--param", "width=64")["rows"][0]
    assert wider["basis"] == "scaled" and "another width" in wider["words"]
    like = CliRunner().invoke(
        main, ["plan", "--like", run.words, "--gpus", f"cpu:{cores}", "--steps", "1000", "--json"]
    )
    row = json.loads(like.stdout)["rows"][0]
    assert (row["basis"], row["steps"]) == ("measured", 1000), like.output

    source = (project / "pricedproj" / "train.py").read_text()
    assert "SGD" in source
    book = json.loads((project / BOOK).read_text())
    for cell in book["cells"]:
        cell["source"] = "".join(cell["source"]).replace("lr=0.1", "lr=0.2")
    (project / BOOK).write_text(json.dumps(book))
    edited = planned("--gpus", f"cpu:{cores}")["rows"][0]
    assert edited["basis"] == "scaled" and "earlier code" in edited["words"], edited


@pytest.mark.slow
def test_a_probe_that_fails_says_the_failure_and_where_to_look(project):
    said = refused(BOOK, "--cell", "Broken", "--probe", "5")
    assert "the labels are missing" in said and "fsdl show" in said and "--probe" in said, said


def test_all_offers_under_a_limit_and_the_gpus_that_are_known(project):
    plan = planned("--max-cost", "25")
    assert len(plan["rows"]) > 80 and all(row["basis"] == "unknown" for row in plan["rows"])
    done = CliRunner().invoke(main, ["gpus", "--memory", ">=80GB", "--sort", "bandwidth", "--json"])
    rows = json.loads(done.stdout)
    assert rows[0]["gpu"] == "B200 SXM" and all(row["source"] for row in rows)


def test_a_model_that_fits_nowhere_has_no_price(project):
    words = [
        "plan",
        "pricedproj.train:Net",
        "pricedproj.train:points",
        "--param",
        "width=2000000000",
        "--gpus",
        "t4:1,h100:1",
        "--json",
    ]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    rows = {row["gpu"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["T4"]["unfit"].startswith("needs ") and rows["T4"]["cost"] is None


@pytest.mark.slow
def test_what_people_ask_and_cannot_have(project):
    cell = (BOOK, "--cell", "Train")
    assert "Did you mean 'h100'?" in refused(*cell, "--gpus", "h10:1")
    assert "'0' is not a valid number of devices" in refused(*cell, "--gpus", "h100:0")
    assert "0 is not a valid number of steps" in refused(*cell, "--gpus", "h100:1", "--steps", "0")
    assert "they cannot be compared" in refused(*cell, "--gpus", "h100:1", "--max-cost", "25 EUR")
    assert "no amount of money above 0" in refused(*cell, "--max-cost", "-3")
    assert "No machine of your own is described" in refused("--own", "--gpu", "h100")
    assert "Nothing to plan was named" in refused("--gpus", "h100:1,a100:4")
    assert "A probe launches a job" in refused(
        "pricedproj.train:Net", "pricedproj.train:points", "--probe", "5"
    )
    (project / "prices.csv").write_text("provider,region,instance_type,gpu,gpu_count\n")
    settings = project / "pyproject.toml"
    text = settings.read_text()
    table = '[tool.fsdl_dev]\nprice_list = "prices.csv"\n'
    known = "[tool.fsdl_dev]\n" in text
    settings.write_text(text.replace("[tool.fsdl_dev]\n", table, 1) if known else f"{text}\n{table}")
    done = CliRunner().invoke(main, ["gpus"])
    assert "The price list has no column gpu_memory_gb" in done.output and done.exit_code == 2, done.output


def test_a_machine_of_ones_own_beside_the_offers(project):
    words = "--own --gpu h100 --param purchase=280000 --param years=4 --param power_kw=10 --param electricity=0.25"
    words += " --param hours_of_use=6000 --param gpu_count=8 --json"
    found = json.loads(CliRunner().invoke(main, ["plan", *words.split()]).stdout)
    machine, rent = found["machine"], found["rents"][-1]
    fixed = machine["purchase"] / machine["years"]
    assert rent["break_even"] == pytest.approx(fixed / (8 * rent["hour"] - 2.5))
    with pytest.raises(FsdlError, match="Which GPU your machine has is not known"):
        fsdl_dev.plan(own=True, params=machine, say=None)
