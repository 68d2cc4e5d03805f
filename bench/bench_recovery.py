"""kill -9 of a rank to training again, on two CPU processes: ours beside torchrun with Lightning.

    python bench/bench_recovery.py [--rounds 5] [--after 60] [--only ours]

Both train the same small network in two processes that form one gloo group, with a checkpoint every five steps, and lose rank 1 to a kill -9 after a minute. Ours is a
run like any other (`fsdl launch --procs 2`). The peer is `torchrun --max-restarts 3` with plain Lightning, ModelCheckpoint and `ckpt_path="last"`, and with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which half of its restarts fail (pytorch#135712). In turns; medians. The split of the time:

    ended    the kill to the moment when the other rank is gone too and the new ones are started
    imports  until the script's first line after its imports: Python, torch, Lightning
    set-up   until the first training step begins: the process group, the model, the checkpoint
    step     until the first step is done

The model's load time is next to nothing here, so the sum stands beside the aim of 10 s.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from side_by_side import make_project, use_test_helpers

use_test_helpers()

COMMON = """
import os, sys, time
def mark(word):
    if os.environ["RANK"] == "0":
        with open(sys.argv[1], "a") as file: file.write(f"{word} {time.time()} {os.getpid()}\\n")
mark("python")
import pytorch_lightning as pl, torch
from torch.utils.data import DataLoader, TensorDataset
"""
MODULE = """
mark("imports")
if os.environ["RANK"] == "1": open(sys.argv[1] + ".pid", "w").write(str(os.getpid()))
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    def training_step(self, batch, index):
        mark("begins")
        time.sleep(0.1)
        return (self.layers(batch[0]) - batch[1]).square().mean()
    def on_train_batch_end(self, *ignored): mark(f"step{self.trainer.global_step}")
    def configure_optimizers(self): return torch.optim.AdamW(self.parameters(), 1e-2)
x = torch.randn(256, 8); data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), 16)
settings = dict(max_steps=100_000, accelerator="cpu", enable_model_summary=False)
"""
OURS = (
    COMMON
    + "from fsdl_dev.train.checkpoints.one_file import RunCheckpoint\nfrom fsdl_dev.train.trainer import"
    " Trainer\n"
    + MODULE
    + """
Trainer(callbacks=[RunCheckpoint(every_n_train_steps=5)], **settings).fit(Net(), data)
"""
)
PEER = (
    COMMON
    + "from pytorch_lightning.callbacks import ModelCheckpoint\n"
    + MODULE
    + """
folder = os.path.dirname(sys.argv[1])
saves = ModelCheckpoint(folder, save_last=True, every_n_train_steps=5)
last = os.path.join(folder, "last.ckpt")
trainer = pl.Trainer(devices=2, strategy="ddp", callbacks=[saves], default_root_dir=folder, logger=False, enable_progress_bar=False, **settings)
trainer.fit(Net(), data, ckpt_path=last if os.path.exists(last) else None)
"""
)


def marks(file: Path) -> list[tuple[str, float]]:
    """What rank 0 has written down, with its times."""
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [(word, float(when)) for word, when, _ in lines]


def wait_for(true, what: str, patience: float = 180.0):
    """Wait for something to be true; give it back."""
    end = time.monotonic() + patience
    while not (found := true()):
        if time.monotonic() > end:
            raise SystemExit(f"waited in vain for {what}")
        time.sleep(0.01)
    return found


def kill_and_watch(file: Path) -> dict[str, float]:
    """Kill rank 1 in the middle, and measure until rank 0 has done a step again."""
    wait_for(lambda: "step12" in dict(marks(file)), "step 12")
    time.sleep(AFTER)
    pid, killed = int(Path(f"{file}.pid").read_text()), time.time()
    os.kill(pid, signal.SIGKILL)

    def after() -> dict[str, float] | None:
        later: dict[str, float] = {}
        for word, when in marks(file):
            if when > killed and (word == "python" or "python" in later):
                later.setdefault("step" if word.startswith("step") else word, when)
        return later if "step" in later else None

    times = wait_for(after, "the first step after the kill")
    words = ("python", "imports", "begins", "step")
    parts = dict(
        zip(
            ("ended", "imports", "set-up", "step"),
            (times[now] - before for now, before in zip(words, (killed, *(times[word] for word in words)))),
        )
    )
    return {"all": times["step"] - killed, **parts}


def ours(folder: Path) -> dict[str, float]:
    """A run of ours."""
    from fsdl_dev.api import launch

    file = folder / "marks.txt"
    run = launch("ours.py", args=[str(file)], procs=2, gpus=0, on="local", folder=PROJECT, say=None)
    measured = kill_and_watch(file)
    run.cancel()
    run.wait(timeout=120, progress=False)
    return measured


def peer(folder: Path) -> dict[str, float]:
    """torchrun and Lightning."""
    file = folder / "marks.txt"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=3",
        str(PROJECT / "peer.py"),
        str(file),
    ]
    job = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"},
    )
    try:
        return kill_and_watch(file)
    finally:
        job.terminate()
        job.wait(60)


def main() -> None:
    """Measure in turns and print."""
    global PROJECT, AFTER
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="ours or peer")
    parser.add_argument(
        "--after",
        type=float,
        default=60,
        help="seconds of training before the kill; ours has its spare process ready by then",
    )
    asked = parser.parse_args()
    AFTER = asked.after
    measures = {"ours": ours, "torchrun + Lightning": peer}
    if asked.only:
        measures = {
            name: measure
            for name, measure in measures.items()
            if name.startswith(asked.only if asked.only == "ours" else "torchrun")
        }
    with tempfile.TemporaryDirectory() as place:
        PROJECT = Path(place, "project")
        make_project(PROJECT, ours=OURS, peer=PEER)
        subprocess.run(["git", "add", "-A"], cwd=PROJECT, check=True)
        subprocess.run(["git", "commit", "-qm", "a start"], cwd=PROJECT, check=True)
        os.environ.update(FSDL_STORE=f"{place}/store", FSDL_STATE=f"{place}/state", OMP_NUM_THREADS="1")
        found: dict[str, list] = {name: [] for name in measures}
        for number in range(asked.rounds):
            for name, measure in measures.items():
                folder = Path(place, f"{name.split()[0]}{number}")
                folder.mkdir()
                found[name].append(measure(folder))
                print(
                    f"round {number + 1} {name:<22}"
                    + "  ".join(f"{word} {seconds:5.2f}" for word, seconds in found[name][-1].items()),
                    flush=True,
                )
    print("\nkill -9 of a rank to a step done again, medians in seconds")
    middle = {
        name: {word: statistics.median(one[word] for one in all_) for word in all_[0]}
        for name, all_ in found.items()
    }
    for name, words in middle.items():
        print(f"  {name:<22}" + "  ".join(f"{word} {seconds:5.2f}" for word, seconds in words.items()))
    if len(middle) == 2:
        print(
            f"  ratio {middle['ours']['all'] / middle['torchrun + Lightning']['all']:.2f} (aim: ours under"
            " 10 s)"
        )


if __name__ == "__main__":
    main()
