"""The loop from a correction to the next model, by the commands: feedback, drift, retrain, rollback; and what hostile
people send.
"""

import io
import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from promoted import add_run, make_project, promote_digits, trained_net
from sklearn.datasets import load_digits

from fsdl_dev import FeedbackStore, FsdlError, drift, launch, lineage, promote, promotions, with_feedback
from fsdl_dev.cli.main import main
from fsdl_dev.core.event_kinds import Data
from fsdl_dev.data.digits import DigitsData
from fsdl_dev.feedback.dataset import make_version
from fsdl_dev.feedback.drift import drift_between
from fsdl_dev.feedback.features import Features, features_of
from fsdl_dev.feedback.retrain import retrain
from fsdl_dev.share.promote import load_model

DIGITS = load_digits()


def as_file(index: int) -> bytes:
    """A digit in black on white."""
    file = io.BytesIO()
    Image.fromarray((255 - DIGITS.images[index] * 255 / 16).round().astype("uint8")).save(file, format="PNG")
    return file.getvalue()


def send(store: FeedbackStore, numbers, run: str) -> list[str]:
    """Corrections of inverted digits."""
    sent = []
    for number in numbers:
        sent.append(store.keep("image", as_file(number), "0", model="digits@production", run=run))
        store.correct(sent[-1], str(DIGITS.target[number]))
    return sent


@pytest.fixture
def digits(tmp_path, monkeypatch):
    """A project with a promoted model, in which commands are called."""
    root = make_project(tmp_path / "digits")
    monkeypatch.chdir(root)
    promote_digits(root)
    return root


def fsdl(*words: str, code: int = 0) -> str:
    """What a command prints, in this process."""
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout if "--json" in words else done.output


def candidate(root: Path, version, steps: int = 200):
    """A run that trained on a version, as its record says."""
    data = with_feedback(DigitsData(batch_size=64, image_size=16), version.folder, repeat=4)
    examples = [data.parts["train"][index] for index in range(len(data.parts["train"]))]
    images, targets = torch.stack([one[0] for one in examples]), torch.stack([one[1] for one in examples])
    net = trained_net(root, images, targets, steps)
    tags = {"feedback": version.reference, "retrains": promotions("digits", root)[-1].run}
    run = add_run(root, net, "digit_net:Net", 0.96, data.takes, data.digest, tags=tags)
    told = {"splits": {"train": 9}, "sources": {"train": data.sources["train"]}}
    run.dir.writer("rank0", 0).write(Data(name="DigitsData", digest=data.digest, **told))
    return run


def test_from_corrections_to_the_next_model_and_back(digits):
    store, first = FeedbackStore("digits"), promotions("digits")[-1]
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    send(store, order[539:739].tolist(), first.run)
    assert "200 wait" not in fsdl("feedback", "accept", "digits", "--state", "waiting", "--who", "Ada")
    fsdl("drift", "digits@production", "--to", "drift.html", code=1)
    assert (digits / "drift.html").read_text().count("<svg") == 3
    version = make_version(store)
    run = candidate(digits, version)
    (digits / "train.py").write_text("data = fsdl_dev.with_feedback(data)\n")
    made = retrain("digits@production", run=run.id, why="inverted", say=None)
    assert made.ok, made.to_text()
    tests = made.measured.numbers
    assert tests["new"]["before"] < 0.3 < 0.8 < tests["new"]["now"] and tests["old"]["count"] == 359
    assert promotions("digits")[-1].against["tests"]["new"]["version"] == version.reference
    told = lineage(run.id).to_text()
    assert (
        version.reference in told
        and "200 corrections accepted by Ada" in told
        and "retrained from" in told
        and "promoted by" in told
    )
    assert run.id in {one for one, *_ in lineage(version.reference).found}
    assert fsdl("rollback", "digits") and promotions("digits")[-1].run == first.run


NOTEBOOK = [
    "#| default_exp net",
    """#| export
import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Subset, TensorDataset

import fsdl_dev""",
    """#| export
def rows():
    return TensorDataset(torch.tensor(load_digits().images).float()[:, None] / 16, torch.tensor(load_digits().target))


def test_rows():
    return Subset(rows(), range(1400, 1797))""",
    """#| export
class Net(pl.LightningModule):
    takes = fsdl_dev.ImageInput(tuple("0123456789"), size=8, mean=(0.0,), std=(1.0,), crop=1.0)

    def __init__(self, width=64):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)
        )

    def forward(self, images):
        return self.layers(images)

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val_accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def setup(self, stage):
        self.rows = rows()

    def train_dataloader(self):
        return DataLoader(Subset(self.rows, range(1200)), batch_size=64, shuffle=True)

    def val_dataloader(self):
        return DataLoader(Subset(self.rows, range(1200, 1400)), batch_size=200)

    def test_dataloader(self):
        return DataLoader(test_rows(), batch_size=64)""",
    """#| export
#| sealed
def evaluate(model):
    images, labels = next(iter(DataLoader(test_rows(), 500)))
    return {"accuracy": (model(images).argmax(1) == labels).float().mean()}""",
    """#| slow
pl.seed_everything(0, verbose=False)
best = pl.callbacks.ModelCheckpoint(monitor="val_accuracy", mode="max")
trainer = pl.Trainer(max_epochs=8, callbacks=[best], enable_progress_bar=False, enable_model_summary=False)
trainer.fit(fsdl_dev.with_feedback(Net(), repeat=4))""",
]


@pytest.mark.slow
def test_a_notebook_with_loaders_of_its_own_is_trained_again_by_its_seal(tmp_path, monkeypatch):
    from sealed_project import make_project as make_notebook_project

    root = make_notebook_project(tmp_path / "proj", NOTEBOOK, notebook="nbs/00_net.ipynb")
    (root / "proj" / "digits.py").rename(root / "proj" / "net.py")
    (root / "data.txt").write_text("digits of scikit-learn\n")
    with open(root / "pyproject.toml", "a") as file:
        file.write('\n[tool.fsdl_dev.feedback.digits]\ndata = "proj.net:Net"\n')
    monkeypatch.chdir(root)
    run = launch("nbs/00_net.ipynb", data=["../data.txt"], say=None).wait(progress=False)
    assert run.state == "succeeded", run.logs()
    promote(run, "digits", why="first")
    assert type(run.load("best")).__name__ == "Net"
    store = FeedbackStore("digits")
    fsdl("app", "digits@production")
    assert "guess" not in (root / "apps/digits/app.py").read_text()
    store.review(send(store, range(200), run.id), accept=True, who="Ada")
    made = retrain("digits@production", why="inverted", say=None)
    assert made.ok, made.to_text()
    tests, told = made.measured.numbers, made.run.facts.sealed
    assert tests["old"]["now"] == pytest.approx(next(iter(told.values()))) and "sealed" in tests["old"]["by"]
    assert tests["new"]["before"] < 0.5 < tests["new"]["now"]
    assert made.run.job.kind == "notebook" and "data.txt" in made.run.dir.snapshot_file.read_text()
    assert drift("digits@production").alarm


def test_a_run_that_left_the_corrections_out_is_not_compared(digits):
    store, first = FeedbackStore("digits"), promotions("digits")[-1]
    store.review(send(store, range(100), first.run), accept=True, who="Ada")
    made = retrain("digits@production", say=None)
    assert made.exit_code == 3 and made.run is None and "with_feedback" in made.to_text()
    (digits / "train.py").write_text("data = fsdl_dev.with_feedback(data)\n")
    assert retrain("digits@production", dry_run=True, say=None).exit_code == 0
    net = load_model("digits@production", folder=digits)
    run = add_run(digits, net, "digit_net:Net", 0.99, None, "d2")
    with pytest.raises(FsdlError) as refused:
        retrain("digits@production", run=run, say=None)
    assert refused.value.code == "unused" and "with_feedback(data)" in refused.value.fix


def test_a_model_that_is_not_better_is_not_promoted(digits):
    store, first = FeedbackStore("digits"), promotions("digits")[-1]
    (digits / "train.py").write_text("data = fsdl_dev.with_feedback(data)\n")
    store.review(send(store, range(120), first.run), accept=True, who="Ada")
    version = make_version(store)
    run = candidate(digits, version, steps=1)
    made = retrain("digits@production", run=run.id, say=None)
    assert made.exit_code == 3 and promotions("digits")[-1].run == first.run
    assert "loses more than 0.01 on the old test examples" in made.to_text()


def test_nothing_accepted_and_no_data_are_named(digits):
    with pytest.raises(FsdlError) as refused:
        retrain("digits@production", say=None)
    assert "No feedback on digits is accepted" in refused.value.what
    assert "There is no feedback on digits" in fsdl("feedback", "list", "digits", code=4)
    (digits / "pyproject.toml").write_text("[tool.fsdl_dev]\n")
    assert 'data = "my_project.data:load"' in fsdl("drift", "digits@production", code=2)


def test_few_inputs_are_no_verdict(digits):
    send(FeedbackStore("digits"), range(12), "x")
    assert "No verdict" in fsdl("drift", "digits@production", code=5)
    assert json.loads(fsdl("drift", "digits@production", "--json", code=5))["few"]


def test_fresh_samples_of_the_training_raise_no_alarm(digits):
    """Forty samples of what the model was tested on, in what the model makes of them, and inverted digits."""
    data, model = DigitsData(batch_size=64, image_size=16), load_model("digits@production", folder=digits)
    parts = [features_of(model, data.parts[name]) for name in ("validation", "test")]
    values = np.concatenate([part.values for part in parts])
    alarms = 0
    for seed in range(40):
        order = np.random.default_rng(seed).permutation(len(values))
        one, two = (
            Features(parts[0].names, values[some], np.zeros(len(some), int))
            for some in (order[200:], order[:200])
        )
        alarms += drift_between(one, two, 0.001).alarm
    assert alarms == 0
    inverted = features_of(
        model, [((1 - 0.305 * 2) / 0.376 - image, target) for image, target in data.parts["test"]]
    )
    assert drift_between(Features(parts[0].names, values, np.zeros(len(values), int)), inverted, 0.001).alarm


def _keep_many(place: str, start: int) -> int:
    store, kept = FeedbackStore("digits", place), 0
    for number in range(start, start + 60):
        try:
            store.keep("text", f"text {number}", "1", model="digits@production", run="x")
            kept += 1
        except FsdlError as error:
            assert error.code == "full"
    return kept


def test_writers_in_several_processes_keep_every_line_and_the_limit(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.fsdl_dev.feedback]\nmax_kept = 100\n")
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        kept = list(pool.map(_keep_many, [str(tmp_path)] * 2, [0, 1000]))
    store = FeedbackStore("digits", tmp_path)
    assert sum(kept) == 100 == len(store.entries()) and store.unreadable == 0


def test_ten_thousand_at_once_stop_at_the_limit(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.fsdl_dev.feedback]\nmax_kept = 500\n")
    store, refused = FeedbackStore("digits", tmp_path), 0
    for number in range(10_000):
        try:
            store.keep("text", f"text {number % 700}", "1", model="digits@production", run="x")
        except FsdlError as error:
            assert error.code == "full" and "fsdl feedback delete digits" in error.fix
            refused += 1
    assert (len(store.entries()), refused) == (500, 9500)
    assert len(list((store.folder / "inputs").iterdir())) == 500


def test_the_folder_of_the_feedback_is_no_link(tmp_path):
    (tmp_path / "pyproject.toml").write_text("")
    store = FeedbackStore("digits", tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    store.folder.parent.mkdir(parents=True)
    store.folder.symlink_to(elsewhere)
    with pytest.raises(FsdlError) as refused:
        store.keep("text", "a text", "1", model="digits@production", run="x")
    assert "is a link" in refused.value.what and not list(elsewhere.iterdir())


def test_feedback_is_deleted_with_its_data_sets(digits):
    store = FeedbackStore("digits")
    sent = send(store, range(30), "x")
    fsdl("feedback", "accept", "digits", *sent, "--who", "Ada")
    made = json.loads(fsdl("feedback", "dataset", "digits", "--json"))
    assert sum(made[part] for part in ("train", "validation", "test")) == 30
    fsdl("feedback", "reject", "digits", sent[0])
    assert "30" not in fsdl("feedback", "list", "digits", "--state", "rejected").splitlines()[0]
    gone = json.loads(fsdl("feedback", "delete", "digits", sent[1], "--yes", "--json"))
    assert gone == {"predictions": 1, "inputs": 1, "versions": 1}
    with pytest.raises(FsdlError):
        with_feedback(DigitsData(batch_size=64, image_size=16), made["version"])
    fsdl("feedback", "delete", "digits", code=2)
    fsdl("feedback", "delete", "digits", "--all", "--yes")
    assert store.entries() == [] and not list((store.folder / "inputs").iterdir())


def test_the_commands_load_no_torch():
    code = "import sys; from fsdl_dev.cli.main import main; sys.exit(bool({'torch', 'streamlit'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
