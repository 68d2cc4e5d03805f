# ruff: noqa: E501  the lines of scripts in a line of their own
"""Jobs whose training works and whose end does not: what a rehearsal has to find. Each fails late, and for one reason."""

from dataclasses import dataclass

LIGHTNING = """\
import json

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

torch.manual_seed(0)


def loader(samples=403, **settings):
    x = torch.randn(samples, 4)
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=32, **settings)


class Net(pl.LightningModule):
    def __init__(self, width=16, lr=0.01, act=None):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))
        self.seen = []
        #INIT

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train/loss", loss)
        #TRAIN
        return loss

    def validation_step(self, batch, index):
        right = (self.net(batch[0]).argmax(1) == batch[1]).float()
        self.log("val/acc", right.mean())
        #VALIDATE

    def test_step(self, batch, index):
        self.log("test/acc", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())
        #TEST

    #METHODS

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        #OPTIMIZERS
        return optimizer


#CLASSES
callbacks = []
train, validation = loader(shuffle=True), loader(203)
net = Net()
#BEFORE
trainer = pl.Trainer(max_epochs=20, callbacks=callbacks, enable_model_summary=False)
trainer.fit(net, train, validation)
#AFTER
"""

PLAIN = """\
import argparse
import json
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--lr", type=float, default=0.05)
args = parser.parse_args()
torch.manual_seed(0)
x = torch.randn(403, 4)
train = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=32, shuffle=True)
test = DataLoader(TensorDataset(x[:203], (x[:203].sum(1) > 0).long()), batch_size=32)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
history, best = [], 0.0
#BEFORE


def evaluate():
    right = total = 0
    with torch.no_grad():
        for inputs, labels in test:
            #EVALUATE
            right += (net(inputs).argmax(1) == labels).sum().item()
            total += len(labels)
    return right / total


for epoch in range(args.epochs):
    for inputs, labels in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), labels)
        loss.backward()
        optimizer.step()
        #STEP
    accuracy = evaluate()
    history.append(accuracy)
    if accuracy > best:
        best = accuracy
        torch.save(net.state_dict(), "best.pth")
    #EPOCH
#AFTER
"""

TRANSFORMERS = """\
import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

torch.manual_seed(0)


class Texts(torch.utils.data.Dataset):
    def __init__(self, count):
        self.ids = torch.randint(5, 90, (count, 12))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": int(ids.float().mean() > 47)}


def compute_metrics(told):
    right = np.argmax(told.predictions, axis=-1) == told.label_ids
    #METRICS
    return {"accuracy": float(right.mean())}


class Own(TrainerCallback):
    pass
    #CALLBACK


sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=100)
model = BertForSequenceClassification(BertConfig(**sizes))
arguments = TrainingArguments(
    "out", num_train_epochs=10, per_device_train_batch_size=8, eval_strategy="epoch", save_strategy="epoch",
    report_to="none", use_cpu=True, logging_steps=500, disable_tqdm=True,  #ARGUMENTS
)
trainer = Trainer(
    model, arguments, train_dataset=Texts(200), eval_dataset=Texts(90), compute_metrics=compute_metrics, callbacks=[Own()]
)
trainer.train()
#AFTER
"""


@dataclass(frozen=True)
class Planted:
    """A job that fails late."""

    name: str
    source: str  # the script
    says: str  # what the rehearsal's failed check has to name
    best: str = ""  # of --best
    found: bool = True  # False: no short training can find it


def fill(template: str, **parts: str) -> str:
    """A template with its places filled; the lines of a part have the indentation of their place."""
    lines = []
    for line in template.splitlines():
        place = line.strip()
        if "  #ARGUMENTS" in line:
            lines.append(line.replace("  #ARGUMENTS", f" {parts.get('ARGUMENTS', '')}"))
        elif place.startswith("#") and place[1:].isupper():
            indent = line[: len(line) - len(line.lstrip())]
            lines += [f"{indent}{one}" for one in parts.get(place[1:], "").strip("\n").splitlines()]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def light(name: str, says: str, best: str = "", found: bool = True, **parts: str) -> Planted:
    return Planted(name, fill(LIGHTNING, **parts), says, best, found)


def plain(name: str, says: str, found: bool = True, **parts: str) -> Planted:
    return Planted(name, fill(PLAIN, **parts), says, found=found)


def hugging(name: str, says: str, **parts: str) -> Planted:
    return Planted(name, fill(TRANSFORMERS, **parts), says)


ADD_GROUP = """
def on_train_epoch_start(self):
    if self.current_epoch == 1:
        self.extra = nn.Linear(4, 2)
        self.optimizers().add_param_group({"params": self.extra.parameters()})
"""
GROWS = """
def on_train_epoch_end(self):
    self.register_buffer("history", torch.zeros(self.current_epoch + 1))
"""
LOADER = """
class Ordered(Sampler):
    def __init__(self, count):
        self.count, self.place = count, 0
    def __len__(self):
        return self.count
    def __iter__(self):
        yield from range(self.count)


class Resumable(DataLoader):
    def state_dict(self):
        return {"place": 3}
    def load_state_dict(self, state):
        self.sampler.seek(state["place"])
"""
PLANTED = (
    light("validation end", "AttributeError", METHODS="def on_validation_epoch_end(self):\n    if not self.trainer.sanity_checking:\n        self.results.clear()"),
    light("checkpoint metric", "val_acc", BEFORE='callbacks.append(ModelCheckpoint(monitor="val_acc", mode="max"))'),
    light("early stopping metric", "val_loss", BEFORE='callbacks.append(EarlyStopping("val_loss"))'),
    light("whole module with a lambda", "pickle", INIT="self.act = lambda value: value", AFTER='torch.save(net, "whole.pt")'),
    light("report at the end", "No such file", METHODS='def on_train_end(self):\n    open("/no/such/place/report.json", "w")'),
    light("test step", "NameError", TEST='self.log("test/f1", f1(right))', AFTER="trainer.test(net, loader(90))"),
    light("onnx without a sample", "ONNX", AFTER='net.to_onnx("net.onnx")'),
    light("weights to a missing folder", "no/such", AFTER='torch.save(net.state_dict(), "/no/such/net.pt")'),
    light(
        "schedule of one epoch", "IndexError",
        OPTIMIZERS="return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: [1.0][epoch])]",
    ),
    light(
        "one cycle too short", "OneCycleLR",
        OPTIMIZERS='cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=200)\n'
        'return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}',
    ),
    light("matrix as a metric", "conf", METHODS='def on_train_epoch_end(self):\n    self.log("conf", torch.zeros(2, 2))'),
    light("text as a metric", "ValueError", METHODS='def on_train_epoch_end(self):\n    self.log("stage", "warm")'),
    light("resume reads what was not saved", "KeyError", METHODS='def on_load_checkpoint(self, kept):\n    self.seen = kept["seen"]'),
    light("buffer that grows", "history", METHODS=GROWS),
    light("loader without a place", "seek", CLASSES=LOADER, BEFORE="train = Resumable(train.dataset, 32, sampler=Ordered(403))"),
    light("further parameters in epoch 2", "extra", METHODS=ADD_GROUP),
    light(
        "best checkpoint without settings", "TypeError",
        CLASSES="class Wide(Net):\n    def __init__(self, wide):\n        super().__init__()\n        self.hparams.clear()",
        BEFORE="net = Wide(3)", AFTER="Wide.load_from_checkpoint(trainer.checkpoint_callback.best_model_path or "
        "trainer.checkpoint_callback.last_model_path)",
    ),
    light("last batch of one sample", "more than 1 value", INIT="self.net.insert(1, nn.BatchNorm1d(width))", BEFORE="train = loader(385)"),
    light(
        "metric in a callback", "KeyError",
        CLASSES='class Report(pl.Callback):\n    def on_train_end(self, trainer, module):\n        trainer.callback_metrics["val/auc"]',
        BEFORE="callbacks.append(Report())",
    ),
    light("report after the fit", "NotADirectory", METHODS='def on_fit_end(self):\n    open("train.py/report.csv", "w")'),
    light("checkpoints into a file", "could not be written", BEFORE='callbacks.append(ModelCheckpoint("/proc/none", monitor="val/acc"))'),
    light(
        "plateau metric", "val/loss",
        OPTIMIZERS='plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\n'
        'return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val/loss"}}',
    ),
    light("lock in a checkpoint", "pickle", METHODS='def on_save_checkpoint(self, kept):\n    import threading\n    kept["lock"] = threading.Lock()'),
    light("last batch of validation", "shape", VALIDATE="batch[0].reshape(32, 4)"),
    light("prediction", "NameError", METHODS="def predict_step(self, batch, index):\n    return softmax(self.net(batch[0]))", AFTER="trainer.predict(net, loader(90))"),
    light("tensor in a report", "JSON", AFTER='json.dump({"acc": trainer.callback_metrics["val/acc"]}, open("report.json", "w"))'),
    light("list that epoch 1 empties", "append", TRAIN="self.seen.append(float(loss))", METHODS="def on_train_epoch_end(self):\n    self.seen = None"),
    light("metric of the search", "val/accuracy", best="max:val/accuracy"),
    light("unfreezing at epoch 15", "", found=False, METHODS='def on_train_epoch_start(self):\n    if self.current_epoch == 15:\n        self.backbone.unfreeze()'),
    plain("tenth epoch's checkpoint", "checkpoints", EPOCH='if (epoch + 1) % 10 == 0:\n    torch.save(net.state_dict(), f"checkpoints/{epoch}.pt")'),
    plain("report of a missing name", "NameError", AFTER="print(f'best {best_accuracy:.3f}')"),
    plain(
        "schedule of epochs stepped by batches", "step",
        BEFORE="schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=args.epochs)", STEP="schedule.step()",
    ),
    plain("numbers of numpy in a report", "JSON", AFTER='json.dump({"best": np.float32(best)}, open("report.json", "w"))'),
    plain("batches of 32 only", "shape", EVALUATE="inputs = inputs.reshape(32, 4)"),
    plain("best weights under another name", "best.pt", AFTER='net.load_state_dict(torch.load("best.pt"))'),
    plain("option that was renamed", "Namespace", AFTER="print(args.learning_rate)"),
    plain("branch of a rising loss", "", found=False, EPOCH="if len(history) > 3 and history[-1] < history[-3]:\n    optimizer.rewind()"),
    hugging("metrics of an evaluation", "not supported between", METRICS='return {"accuracy": told["accuracy"]}'),
    hugging("best model's metric", "f1", ARGUMENTS='load_best_model_at_end=True, metric_for_best_model="f1",'),
    hugging("callback at the end", "AttributeError", CALLBACK="def on_train_end(self, args, state, control, **given):\n    state.best_accuracy"),
)  # fmt: skip
