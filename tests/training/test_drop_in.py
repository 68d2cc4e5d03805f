"""`fsdl_dev.Trainer` in place of Lightning's: every documented argument and callback trains the same weights.

The tables below name every argument of `pytorch_lightning.Trainer` and every public callback, so that one that
a new Lightning adds fails here until it is tried.
"""

import inspect
from datetime import timedelta
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning import callbacks as cb
from pytorch_lightning.plugins import MixedPrecision
from pytorch_lightning.profilers import SimpleProfiler
from torch.utils.data import DataLoader, TensorDataset

from fsdl_dev.core.events import read_events
from fsdl_dev.train.trainer import Trainer

QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 2}


class Net(pl.LightningModule):
    "Two layers with dropout, so that random numbers that somebody else draws change the weights."

    def __init__(self):
        super().__init__()
        self.backbone = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2)
        )
        self.head = torch.nn.Linear(8, 1)
        self.batch_size, self.lr = 4, 0.05

    def _loss(self, batch):
        return self.head(self.backbone(batch[0])).square().mean()

    def training_step(self, batch, index):
        loss = self._loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self._loss(batch))

    test_step = validation_step

    def predict_step(self, batch, index):
        return self.head(self.backbone(batch[0]))

    def configure_optimizers(self):
        optimiser = torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)
        return [optimiser], [torch.optim.lr_scheduler.StepLR(optimiser, 1, 0.5)]

    def train_dataloader(self):
        rows = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(rows), self.batch_size, shuffle=True)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


# what each argument of Lightning's Trainer is given; several values where they are different things
ARGUMENTS = {
    "accelerator": ["cpu", "auto"],
    "strategy": ["auto"],
    "devices": [1, "1", "auto"],
    "num_nodes": [1],
    "precision": ["32-true", "bf16-mixed", 64],
    "logger": [True, False, None],
    "callbacks": [None, [], cb.Timer],
    "fast_dev_run": [True, 3],
    "max_epochs": [3],
    "min_epochs": [1],
    "max_steps": [11],
    "min_steps": [3],
    "max_time": ["00:01:00:00", timedelta(hours=1), {"hours": 1}],
    "limit_train_batches": [3, 0.5],
    "limit_val_batches": [0, 2],
    "limit_test_batches": [1],
    "limit_predict_batches": [1],
    "overfit_batches": [2, 0.25],
    "val_check_interval": [0.5, 2],
    "check_val_every_n_epoch": [2],
    "num_sanity_val_steps": [0, -1],
    "log_every_n_steps": [1],
    "enable_checkpointing": [True, False],
    "enable_progress_bar": [True],
    "enable_model_summary": [True],
    "accumulate_grad_batches": [3],
    "gradient_clip_val": [0.1],
    "gradient_clip_algorithm": ["value"],
    "deterministic": [True, "warn"],
    "benchmark": [True],
    "inference_mode": [False],
    "use_distributed_sampler": [False],
    "profiler": ["simple", "advanced", SimpleProfiler],
    "detect_anomaly": [True],
    "barebones": [True],
    "plugins": [lambda: MixedPrecision("bf16-mixed", "cpu"), lambda: []],
    "sync_batchnorm": [True],
    "reload_dataloaders_every_n_epochs": [1],
    "default_root_dir": ["elsewhere"],
    "enable_autolog_hparams": [False],
    "model_registry": ["name"],
}
TOGETHER = {
    "gradient_clip_algorithm": {"gradient_clip_val": 0.01},
    "barebones": {"enable_progress_bar": None},
}


class Finetuning(cb.BaseFinetuning):
    def freeze_before_training(self, module):
        self.freeze(module.backbone)

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(module.backbone, optimizer)


class Bar(cb.ProgressBar):
    def disable(self):
        pass


CALLBACKS = {
    "BackboneFinetuning": lambda: cb.BackboneFinetuning(unfreeze_backbone_at_epoch=1),
    "BaseFinetuning": Finetuning,
    "BasePredictionWriter": lambda: cb.BasePredictionWriter("epoch"),
    "BatchSizeFinder": lambda: cb.BatchSizeFinder(mode="binsearch", max_trials=2, steps_per_trial=1),
    "Callback": cb.Callback,
    "Checkpoint": cb.Checkpoint,
    "DeviceStatsMonitor": lambda: cb.DeviceStatsMonitor(cpu_stats=True),
    "EarlyStopping": lambda: cb.EarlyStopping("val_loss", min_delta=10.0, patience=1),
    "GradientAccumulationScheduler": lambda: cb.GradientAccumulationScheduler({0: 2, 1: 1}),
    "LambdaCallback": lambda: cb.LambdaCallback(on_train_epoch_end=lambda *given: torch.rand(1)),
    "LearningRateFinder": lambda: cb.LearningRateFinder(num_training_steps=5),
    "LearningRateMonitor": lambda: cb.LearningRateMonitor("step"),
    "ModelCheckpoint": lambda: cb.ModelCheckpoint(monitor="val_loss", save_last=True),
    "ModelPruning": lambda: cb.ModelPruning("l1_unstructured", amount=0.5),
    "ModelSummary": lambda: cb.ModelSummary(max_depth=2),
    "OnExceptionCheckpoint": lambda: cb.OnExceptionCheckpoint("."),
    "ProgressBar": Bar,
    "RichModelSummary": cb.RichModelSummary,
    "RichProgressBar": cb.RichProgressBar,
    "StochasticWeightAveraging": lambda: cb.StochasticWeightAveraging(0.01, swa_epoch_start=1),
    "SpikeDetection": lambda: cb.SpikeDetection(exclude_batches_path="."),
    "ThroughputMonitor": lambda: cb.ThroughputMonitor(lambda batch: len(batch[0]), window_size=2),
    "Timer": lambda: cb.Timer(timedelta(hours=1)),
    "TQDMProgressBar": cb.TQDMProgressBar,
    "EMAWeightAveraging": lambda: cb.EMAWeightAveraging(decay=0.9),
    "WeightAveraging": cb.WeightAveraging,
}


def trained(kind: type[pl.Trainer], settings: dict) -> Net:
    "The module that a Trainer of this class leaves."
    pl.seed_everything(1, verbose=False)
    module = Net()
    made = {name: value() if callable(value) else value for name, value in settings.items()}
    kind(**{name: value for name, value in (QUIET | made).items() if value is not None}).fit(module)
    return module


def compare(settings: dict, folder: Path, monkeypatch, weights: bool = True) -> None:
    "Train with Lightning's Trainer, with ours, and with ours in a run; compare all that was learned."
    monkeypatch.chdir(folder)
    expected = trained(pl.Trainer, settings)
    for run_dir in (None, folder / "run"):
        if run_dir:
            run_dir.mkdir(exist_ok=True)
            monkeypatch.setenv("FSDL_RUN_DIR", str(run_dir))
        found = trained(Trainer, settings)
        assert (found.batch_size, found.lr) == (expected.batch_size, expected.lr)
        assert found.state_dict().keys() == expected.state_dict().keys()
        for name, tensor in expected.state_dict().items():
            assert not weights or torch.equal(tensor, found.state_dict()[name]), (name, run_dir)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in ARGUMENTS.items() for value in values]
)
def test_an_argument_of_lightning(name, value, tmp_path, monkeypatch):
    compare(TOGETHER.get(name, {}) | {name: value}, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_of_lightning(name, tmp_path, monkeypatch):
    # ours puts the random numbers back after a finder's trials, so that what follows is the same as without them
    settings = {"callbacks": CALLBACKS[name], "enable_progress_bar": None}
    compare(settings, tmp_path, monkeypatch, weights=not name.endswith("Finder"))


def test_nothing_of_lightning_is_left_out():
    assert set(ARGUMENTS) == set(inspect.signature(pl.Trainer.__init__).parameters) - {"self"}
    assert set(CALLBACKS) == set(cb.__all__)
    assert set(ARGUMENTS) < set(
        inspect.signature(Trainer).parameters
    )  # what a command line, or an editor, is told


@pytest.mark.parametrize("in_run", [False, True])
def test_the_best_checkpoint_of_a_plain_fit(in_run, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    if in_run:
        (tmp_path / "run").mkdir()
        monkeypatch.setenv("FSDL_RUN_DIR", str(tmp_path / "run"))
    trainer, module = Trainer(**QUIET), Net()
    trainer.fit(module)
    assert "weights_only" not in caplog.text
    (first,) = trainer.test(module, ckpt_path="best", verbose=False)
    another = Net()
    (second,) = trainer.test(another, ckpt_path="best", verbose=False)
    assert first.keys() == second.keys() == {"val_loss"}
    loaded = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)["state_dict"]
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in another.state_dict().items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"] * in_run


class LogsByHand(Net):
    def on_train_batch_end(self, outputs, batch, index):
        self.logger.log_metrics({"by_hand": float(index)}, step=self.global_step)
        self.logger.experiment.add_scalar("scalar", index, self.global_step)
        self.logger.experiment.add_image("picture", torch.zeros(3, 2, 2))


def test_what_a_module_logs_by_hand_reaches_the_card_once(tmp_path, monkeypatch):
    monkeypatch.setenv("FSDL_RUN_DIR", str(tmp_path))
    monitor = cb.LearningRateMonitor("step")
    Trainer(**QUIET | {"max_epochs": 1}, log_every_n_steps=2, callbacks=[monitor]).fit(LogsByHand())
    told = [event for event in read_events(tmp_path / "events") if event["kind"] == "metric"]
    values = {
        name: [event["step"] for event in told if name in event["values"]] for name in ("by_hand", "scalar")
    }
    assert values == {"by_hand": list(range(1, 6)), "scalar": list(range(1, 6))}
    names = [
        (event["step"], name)
        for event in told
        for name in event["values"]
        if name not in ("train_loss", "lr")
    ]
    assert len(names) == len(set(names)), names
    assert any(name.startswith("lr-") for _, name in names) and not any(name == "epoch" for _, name in names)


def test_lightnings_command_line_sees_every_argument(tmp_path, monkeypatch):
    cli = pytest.importorskip("pytorch_lightning.cli", reason="pip install 'jsonargparse[signatures]'")
    if not cli._JSONARGPARSE_SIGNATURES_AVAILABLE:
        pytest.skip("pip install 'jsonargparse[signatures]'")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("FSDL_RUN_DIR", str(tmp_path / "run"))
    words = ["fit", "--trainer.max_steps=2", "--trainer.accelerator=cpu", "--trainer.loss_guard=off"]
    words += [
        "--trainer.callbacks+=pytorch_lightning.callbacks.TQDMProgressBar",
        "--trainer.enable_model_summary=false",
    ]
    for _ in range(2):  # a run that restarts writes its configuration again
        trainer = cli.LightningCLI(Net, trainer_class=Trainer, args=words).trainer
        assert trainer.global_step == 2 and trainer.default_root_dir == str(tmp_path / "run")
    assert "max_steps: 2" in (tmp_path / "run" / "config.yaml").read_text()
    monkeypatch.delenv("FSDL_RUN_DIR")
    (tmp_path / "config.yaml").write_text("# mine\ntrainer: {default_root_dir: .}\n")
    for version in range(2):  # outside of a run, in a new folder: none of the user's files is written over
        cli.LightningCLI(Net, trainer_class=Trainer, args=[*words, "--config=config.yaml"])
        assert (tmp_path / "lightning_logs" / f"version_{version}" / "config.yaml").exists()
    assert (tmp_path / "config.yaml").read_text().startswith("# mine")
