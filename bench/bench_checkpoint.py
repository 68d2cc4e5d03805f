"""How long a save keeps training waiting: our checkpoint folders, written in the background, against
Lightning's ModelCheckpoint.

python bench/bench_checkpoint.py [--rounds 5] [--megabytes 120]

The same module and optimiser states (weights and two Adam averages, so a third of the bytes is weights) are
saved in this process by both, in turns; the order within a round alternates. The stall is the time from the end
of a step's computation until the next step may begin: for Lightning that is `trainer.save_checkpoint`, which
its ModelCheckpoint calls; for ours the same call of the callback in a run. Before each measurement the earlier
save is whole, as it is at any sensible interval. The first save of each kind, which makes buffers, is not
counted. Prints both medians and the ratio; the aim is at most 0.2.
"""

import argparse
import logging
import os
import shutil
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from fsdl_dev.core.manifest import newest_checkpoint, problem_with
from fsdl_dev.train.trainer import Trainer


class Module(pl.LightningModule):
    "Sixteen matrices of the wanted size in all."

    def __init__(self, megabytes: float):
        super().__init__()
        side = int((megabytes * 1e6 / 3 / 4 / 16) ** 0.5)
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(side, side) for _ in range(16)))

    def training_step(self, batch, index):
        return self.layers(batch[:, : self.layers[0].in_features]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-4)


class Both(pl.Callback):
    "Saves both ways after each step, and notes how long training stood still."

    def __init__(self, folder: Path, bare: pl.Trainer):
        self.folder, self.bare, self.stalls = folder, bare, {"ours": [], "Lightning": []}

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        for kind in ("ours", "Lightning") if index % 2 else ("Lightning", "ours"):
            connector = trainer._checkpoint_connector
            connector.saver.wait()
            start = time.perf_counter()
            if kind == "ours":
                connector.save_folder(self.folder / f"step{index:08d}")
            else:
                checkpoint = pl.trainer.connectors.checkpoint_connector._CheckpointConnector.dump_checkpoint(
                    connector, False
                )
                self.bare.strategy.save_checkpoint(checkpoint, self.folder / "lightning.ckpt")
            self.stalls[kind].append(time.perf_counter() - start)
        connector.saver.wait()
        newest = newest_checkpoint(self.folder)
        assert problem_with(newest) is None
        for path in self.folder.glob("step*"):
            shutil.rmtree(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=120)
    options = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    os.environ.pop("FSDL_RUN_DIR", None)
    quiet = {"accelerator": "cpu", "enable_model_summary": False, "enable_progress_bar": False}
    with tempfile.TemporaryDirectory() as folder:
        bare = pl.Trainer(logger=False, enable_checkpointing=False, devices=1, **quiet)
        watch, module = Both(Path(folder), bare), Module(options.megabytes)
        bytes_saved = 3 * sum(parameter.nbytes for parameter in module.parameters())
        Trainer(max_steps=options.rounds + 1, callbacks=[watch], **quiet).fit(
            module, DataLoader(torch.randn(options.rounds + 1, 4096), 1)
        )
    stalls = {kind: times[1:] for kind, times in watch.stalls.items()}
    ours, theirs = statistics.median(stalls["ours"]), statistics.median(stalls["Lightning"])
    print(
        f"{bytes_saved / 1e6:.0f} MB of weights and optimiser states, {options.rounds} rounds; seconds that"
        " training stood still"
    )
    print(f"fsdl_dev, in the background   {ours:8.3f}   {sorted(round(each, 3) for each in stalls['ours'])}")
    print(
        f"Lightning's synchronous save  {theirs:8.3f}  "
        f" {sorted(round(each, 3) for each in stalls['Lightning'])}"
    )
    ratio = statistics.median(one / other for one, other in zip(stalls["ours"], stalls["Lightning"]))
    print(
        f"ratio of medians {ours / theirs:.3f}, median of each round's ratio {ratio:.3f}  (aim: at most 0.2)"
    )


if __name__ == "__main__":
    main()
