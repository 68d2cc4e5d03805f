# ruff: noqa: E501  the lines of scripts in a line of their own
"""Jobs that train well, written as people write them: a rehearsal must refuse none of them."""

import json
from dataclasses import dataclass, field

from rehearsal_planted import LIGHTNING, PLAIN, TRANSFORMERS, fill


@dataclass(frozen=True)
class Good:
    """A job that is fine."""

    name: str
    files: dict[str, str]  # name -> text
    what: str = "train.py"
    args: tuple[str, ...] = ()
    params: dict = field(default_factory=dict)


def script(name: str, text: str, *args: str, **files: str) -> Good:
    return Good(name, {"train.py": text, **files}, args=args)


def light(name: str, **parts: str) -> Good:
    return script(name, fill(LIGHTNING, **parts))


def plain(name: str, *args: str, **parts: str) -> Good:
    return script(name, fill(PLAIN, **parts), *args)


def hugging(name: str, **parts: str) -> Good:
    return script(name, fill(TRANSFORMERS, **parts))


def notebook(name: str, *cells: str, params: dict | None = None) -> Good:
    made = [
        {
            "cell_type": "code",
            "id": f"cell{at}",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": text,
        }
        for at, text in enumerate(cells)
    ]
    about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    text = json.dumps({"cells": made, "metadata": about, "nbformat": 4, "nbformat_minor": 5})
    return Good(name, {"study.ipynb": text}, "study.ipynb", params=params or {})


TWO_OPTIMISERS = """\
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Gan(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.make, self.judge = nn.Linear(4, 8), nn.Linear(8, 1)

    def training_step(self, batch, index):
        one, two = self.optimizers()
        made = self.make(torch.randn(len(batch[0]), 4))
        self.toggle_optimizer(one)
        loss = nn.functional.softplus(-self.judge(made)).mean()
        one.zero_grad()
        self.manual_backward(loss)
        one.step()
        self.untoggle_optimizer(one)
        self.toggle_optimizer(two)
        loss = (self.judge(made.detach()) - self.judge(batch[0])).mean()
        two.zero_grad()
        self.manual_backward(loss)
        two.step()
        self.untoggle_optimizer(two)
        self.log_dict({"loss": loss})

    def on_train_epoch_end(self):
        for schedule in self.lr_schedulers():
            schedule.step()

    def configure_optimizers(self):
        both = [torch.optim.Adam(part.parameters(), 1e-3) for part in (self.make, self.judge)]
        return both, [torch.optim.lr_scheduler.StepLR(one, 30) for one in both]


trainer = pl.Trainer(max_epochs=50)
trainer.fit(Gan(), DataLoader(TensorDataset(torch.randn(400, 8)), 16, shuffle=True))
torch.save(trainer.model.make.state_dict(), "make.pt")
"""
STREAM = """\
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, IterableDataset


class Numbers(IterableDataset):
    def __iter__(self):
        while True:
            x = torch.randn(4)
            yield x, x.sum()


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = (self.layer(batch[0]).squeeze(1) - batch[1]).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=100)
        cool = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 900)
        both = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cool], [100])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": both, "interval": "step"}}


pl.Trainer(max_steps=1000, accumulate_grad_batches=4, gradient_clip_val=1.0).fit(Net(), DataLoader(Numbers(), 8))
"""
DATA_MODULE = """\
import json
import pytorch_lightning as L
import torch
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset, random_split


class Data(L.LightningDataModule):
    def prepare_data(self):
        torch.save(torch.randn(600, 6), "points.pt")

    def setup(self, stage):
        x = torch.load("points.pt")
        self.train, self.val, self.test = random_split(TensorDataset(x, x[:, 0] + x[:, 1]), [400, 100, 100])

    def train_dataloader(self):
        return DataLoader(self.train, 32, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return [DataLoader(self.val, 32), DataLoader(self.test, 50)]

    def test_dataloader(self):
        return DataLoader(self.test, 32)


class Net(L.LightningModule):
    def __init__(self, width: int = 8):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
        self.errors = []

    def step(self, batch):
        return (self.net(batch[0]).squeeze(1) - batch[1]).square().mean()

    def training_step(self, batch, index):
        loss = self.step(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, index, dataloader_idx=0):
        self.errors.append(self.step(batch))
        self.log("val_loss", self.errors[-1])

    def on_validation_epoch_end(self):
        self.log("val_mean", torch.stack(self.errors).mean())
        self.errors.clear()

    def test_step(self, batch, index):
        self.log("test_loss", self.step(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters())
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_mean"}}


keep = ModelCheckpoint("best", monitor="val_mean", save_top_k=2, filename="{epoch}-{val_mean:.3f}", every_n_epochs=5)
callbacks = [keep, EarlyStopping("val_mean", patience=10), LearningRateMonitor("step")]
trainer = L.Trainer(max_epochs=100, callbacks=callbacks, check_val_every_n_epoch=5, log_every_n_steps=5)
data = Data()
trainer.fit(Net(), datamodule=data)
found = trainer.test(Net.load_from_checkpoint(keep.best_model_path), datamodule=data)
json.dump(found, open("test.json", "w"))
"""
STEPS = """\
import math
import torch
from torch import nn

max_iters, eval_interval, eval_iters = 5000, 500, 200
learning_rate, warmup_iters, block = 1e-2, 100, 8
text = open(__file__).read() * 20
letters = sorted(set(text))
data = torch.tensor([letters.index(one) for one in text])
split = int(0.9 * len(data))


def get_batch(part):
    source = data[:split] if part == "train" else data[split:]
    at = torch.randint(len(source) - block - 1, (16,))
    return torch.stack([source[i : i + block] for i in at]), torch.stack([source[i + 1 : i + block + 1] for i in at])


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * it / warmup_iters
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    assert 0 <= ratio <= 1
    return learning_rate * 0.5 * (1 + math.cos(math.pi * ratio))


model = nn.Sequential(nn.Embedding(len(letters), 16), nn.Linear(16, len(letters)))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)


@torch.no_grad()
def estimate_loss():
    out = {}
    for part in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            x, y = get_batch(part)
            losses[k] = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        out[part] = losses.mean()
    return out


best, it = 1e9, 0
while True:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    if it % eval_interval == 0:
        losses = estimate_loss()
        if losses["val"] < best:
            best = losses["val"]
            torch.save({"model": model.state_dict(), "it": it}, "ckpt.pt")
    x, y = get_batch("train")
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    it += 1
    if it > max_iters:
        break
model.load_state_dict(torch.load("ckpt.pt")["model"])
"""
PICTURE = """
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

plt.plot(range(args.epochs), history)
plt.savefig("history.png")
"""
SETTINGS = """\
import json
import random
from itertools import cycle

import torch
from torch.utils.data import DataLoader, TensorDataset

from own.engine import train_one_epoch

settings = json.load(open("settings.json"))
random.seed(settings["seed"])
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=settings["optim"]["lr"], momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=settings["epochs"])
loader = DataLoader(TensorDataset(torch.randn(300, 4)), batch_size=16, shuffle=True)
losses = []
for epoch in range(settings["epochs"]):
    losses.append(train_one_epoch(net, loader, optimizer, epoch))
    schedule.step()
    print(f"epoch {epoch}: {losses[-1]:.3f}, lr {schedule.get_last_lr()[0]:.4f}")
    if epoch == settings["epochs"] - 1:
        torch.save({"net": net.state_dict(), "losses": losses}, "last.pt")
print(min(losses), sum(losses) / len(losses))
"""
ENGINE = """\
import torch


def train_one_epoch(net, loader, optimizer, epoch):
    total = 0.0
    for index, (x,) in enumerate(loader):
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        (loss / 4).backward()
        if (index + 1) % 4 == 0 or index == len(loader) - 1:
            optimizer.step()
            optimizer.zero_grad()
        total += loss.item()
    return total / len(loader)
"""
FOLDS = """
scores = []
for fold in range(3):
    pl.seed_everything(fold)
    own = pl.Trainer(max_epochs=3, enable_model_summary=False, enable_checkpointing=False)
    own.fit(Net(), loader(200), loader(100))
    scores.append(own.validate(Net(), loader(100))[0]["val/acc"])
print(sum(scores) / len(scores))
"""
SKLEARN = """\
import pickle
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

x, y = load_digits(return_X_y=True)
for c in (0.01, 0.1):
    print(c, cross_val_score(LogisticRegression(C=c, max_iter=200), x[:300], y[:300], cv=3).mean())
with open("model.pkl", "wb") as file:
    pickle.dump(LogisticRegression(max_iter=200).fit(x, y), file)
"""
REINFORCE = """\
import argparse
from collections import deque
from itertools import count

import numpy as np
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--log-interval", type=int, default=10)
args = parser.parse_args()
policy = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
running, recent = 10.0, deque(maxlen=20)
for episode in count(1):
    place, steps, reward = 0.0, [], 0.0
    for t in range(1, 30):
        chosen = torch.distributions.Categorical(logits=policy(torch.tensor([[place]])))
        action = chosen.sample()
        steps.append(chosen.log_prob(action))
        place += 1 if action.item() else -1
        reward += place
        if abs(place) > 5:
            break
    optimizer.zero_grad()
    (-torch.cat(steps).sum() * reward / 100).backward()
    optimizer.step()
    recent.append(reward)
    running = 0.05 * reward + 0.95 * running
    if episode % args.log_interval == 0:
        print(f"Episode {episode}: {np.mean(recent):.2f}")
    if episode >= 60:
        break
torch.save(policy.state_dict(), "policy.pt")
"""
OURS = """\
import fsdl_dev
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import pytorch_lightning as pl


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val/loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": cycle, "interval": "step"}]


x = torch.randn(300, 4)
data = TensorDataset(x, (x.sum(1) > 0).long())
trainer = fsdl_dev.Trainer(max_epochs=12, ema=0.99, val_check_interval=0.5)
trainer.fit(Net(), DataLoader(data, 16, shuffle=True), DataLoader(data, 64))
fsdl_dev.log(step=trainer.global_step, final=float(trainer.callback_metrics["val/loss"]))
"""
FUNCTION = '''\
import torch
from torch.utils.data import DataLoader, TensorDataset


def train(epochs=30, lr=0.1, save_every=5):
    """Train a line."""
    net, data = torch.nn.Linear(3, 1), DataLoader(TensorDataset(torch.randn(200, 3)), 10)
    optimizer = torch.optim.SGD(net.parameters(), lr)
    losses = {}
    for epoch in range(1, epochs + 1):
        for (x,) in data:
            loss = (net(x) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[epoch] = loss.item()
        if epoch % save_every == 0:
            torch.save(net.state_dict(), f"net-{epoch}.pt")
    return losses[epochs]
'''
PREDICT = """
trainer.test(ckpt_path=None, dataloaders=loader(90))
METHOD = [type(one).__name__ for one in trainer.callbacks]
print(trainer.predict(net, loader(90))[0].shape)
"""
CELLS = (
    "import torch, pytorch_lightning as pl\nfrom torch.utils.data import DataLoader, TensorDataset\nlr, epochs = 0.1, 30",
    "class Line(pl.LightningModule):\n    def __init__(self):\n        super().__init__()\n        self.layer = torch.nn.Linear(2, 1)\n"
    "    def training_step(self, batch, index):\n        loss = self.layer(batch[0]).square().mean()\n        self.log('loss', loss)\n"
    "        return loss\n    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), lr)",
    "trainer = pl.Trainer(max_epochs=epochs)\ntrainer.fit(Line(), DataLoader(TensorDataset(torch.randn(100, 2)), 8))",
    "print(float(trainer.callback_metrics['loss']))",
)
LOOP_CELLS = (
    "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n%time x = torch.randn(300, 2)",
    "num_epochs = 40\nnet = torch.nn.Linear(2, 1)\noptimizer = torch.optim.Adam(net.parameters())\nlosses = []",
    "for epoch in range(num_epochs):\n    for (batch,) in DataLoader(TensorDataset(x), 16):\n        loss = net(batch).square().mean()\n"
    "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n    losses.append(loss.item())",
    "import matplotlib.pyplot as plt\nplt.plot(range(1, num_epochs + 1), losses);",
    "assert losses[-1] < 0.01",
)
BEST = 'callbacks += [ModelCheckpoint(monitor="val/acc", mode="max", save_last=True), EarlyStopping("val/acc", mode="max")]'
COSINE = (
    "warm = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5)\n"
    "cool = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs - 5)\n"
    "return [optimizer], [torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cool], [5])]"
)
COLLECT = "if not self.trainer.sanity_checking:\n    self.seen.append(right)"
LAST = "def on_train_end(self):\n    assert self.current_epoch == self.trainer.max_epochs\n    json.dump([1], open('end.json', 'w'))"
SWA = "from pytorch_lightning.callbacks import StochasticWeightAveraging, GradientAccumulationScheduler, Timer\n"
PICKED = "def predict_step(self, batch, index):\n    return self.net(batch[0]).argmax(1)"
UNFREEZE = "def on_train_epoch_start(self):\n    self.net.requires_grad_(True)\n    self.net[0].requires_grad_(self.current_epoch >= 10)"
GOOD = (
    light("Lightning, nothing else"),
    light("best checkpoint and early stopping", BEFORE=BEST, AFTER="Net.load_from_checkpoint(trainer.checkpoint_callback.last_model_path)"),
    light("warm-up and cosine over max_epochs", OPTIMIZERS=COSINE),
    light("lists filled in validation", VALIDATE=COLLECT, METHODS="def on_validation_epoch_end(self):\n    self.seen.clear()"),
    light("a file at the end of training", METHODS=LAST),
    light("unfreezing at epoch 10", METHODS=UNFREEZE),
    light("averaged weights", BEFORE=SWA + "callbacks += [StochasticWeightAveraging(1e-2), Timer()]"),
    light("accumulation that changes", BEFORE=SWA + "callbacks += [GradientAccumulationScheduler({0: 2, 8: 4})]"),
    light("test and prediction", METHODS=PICKED, AFTER=PREDICT),
    light("several fits", AFTER=FOLDS),
    light("last batch dropped", INIT="self.net.insert(1, nn.BatchNorm1d(width))", BEFORE="train = loader(385, drop_last=True)"),
    light("no hyperparameters kept", INIT="self.hparams.clear()"),
    light("optimiser and sanity off", AFTER="pl.Trainer(fast_dev_run=True).fit(Net(), train, validation)"),
    light("workers of the loader", BEFORE="train = loader(403, num_workers=2, persistent_workers=True)"),
    script("barebones", fill(LIGHTNING).replace("callbacks=callbacks, enable_model_summary=False", "barebones=True")),
    script("for a GPU and bf16", fill(LIGHTNING).replace("max_epochs=20", 'max_epochs=20, accelerator="gpu", devices=8, strategy="ddp", precision="bf16-mixed"')),
    script("two optimisers by hand", TWO_OPTIMISERS),
    script("a stream and steps", STREAM),
    script("data module, two validations", DATA_MODULE),
    script("fsdl_dev.Trainer with averages", OURS),
    plain("a loop"),
    plain("a loop with arguments", "--epochs", "200", "--lr", "0.1"),
    plain("a picture over epochs", AFTER=PICTURE),
    plain("patience", BEFORE="patience = bad = 0", EPOCH="bad = 0 if accuracy >= best else bad + 1\nif bad > 5:\n    break", AFTER="print(history[-1], history[epoch])"),
    plain("every tenth epoch", BEFORE='os.makedirs("checkpoints", exist_ok=True)', EPOCH='if (epoch + 1) % 10 == 0:\n    torch.save(net.state_dict(), f"checkpoints/{epoch}.pt")'),
    plain("one cycle over all batches", BEFORE="cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=args.epochs, steps_per_epoch=len(train))", STEP="cycle.step()"),
    plain("an assertion about the result", AFTER='assert best > 0.999, "too low"'),
    plain("resume of its own", BEFORE='start = 0\nif os.path.exists("last.pt"):\n    start = torch.load("last.pt")["epoch"]', EPOCH='torch.save({"epoch": epoch}, "last.pt")'),
    script("steps and a while loop", STEPS),
    script("settings from a file, a package", SETTINGS, **{"own/__init__.py": "", "own/engine.py": ENGINE, "settings.json": '{"epochs": 60, "seed": 1, "optim": {"lr": 0.01}}'}),
    script("reinforcement", REINFORCE),
    script("scikit-learn", SKLEARN),
    Good("a function with parameters", {"work.py": FUNCTION}, "work:train", params={"epochs": 50}),
    hugging("Transformers, nothing else"),
    hugging("Transformers, the best at the end", ARGUMENTS='load_best_model_at_end=True, metric_for_best_model="accuracy", save_total_limit=1,'),
    script("Transformers by steps", fill(TRANSFORMERS, AFTER='print(trainer.evaluate()["eval_accuracy"])\ntrainer.save_model("final")').replace('eval_strategy="epoch", save_strategy="epoch"', 'eval_strategy="steps", eval_steps=500, save_strategy="steps", save_steps=500, max_steps=3000')),
    hugging("Transformers, prediction", AFTER="told = trainer.predict(Texts(300))\nassert len(told.predictions) == 300\nnp.save('told.npy', told.predictions)"),
    hugging("Transformers, accumulation and resume", ARGUMENTS="gradient_accumulation_steps=3, warmup_steps=50,", AFTER="trainer.train(resume_from_checkpoint=True)"),
    notebook("a notebook with Lightning", *CELLS),
    notebook("a notebook with a loop", *LOOP_CELLS),
)  # fmt: skip
