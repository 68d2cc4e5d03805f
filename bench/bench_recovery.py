"""kill -9 of a rank to training again, on two CPU processes or one GPU: ours beside torchrun with Lightning.

    python bench/bench_recovery.py [--rounds 5] [--after 60] [--only ours] [--procs 1 --device cuda]

Both train the same small network in two processes that form one gloo group, with a checkpoint every five
steps, and lose rank 1 to a kill -9 after a minute (on a GPU, where NCCL takes one process per device, the
only rank). Ours is a run like any other (`fsdl launch --procs 2`). The peer is `torchrun --max-restarts 3`
with plain Lightning, ModelCheckpoint and `ckpt_path="last"`, and with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1,
without which half of its restarts fail (pytorch#135712). In turns; medians. The split of the time:

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
    if os.environ.get("RANK", "0") == "0":
        with open(sys.argv[1], "a") as file: file.write(f"{word} {time.time()} {os.getpid()}\\n")
mark("python")
import pytorch_lightning as pl, torch
from torch.utils.data import DataLoader, TensorDataset
"""
MODULE = """
mark("imports")
if int(os.environ.get("RANK", 0)) == PROCS - 1: open(sys.argv[1] + ".pid", "w").write(str(os.getpid()))
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
settings = dict(max_steps=100_000, accelerator="DEVICE", enable_model_summary=False)
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
settings |= dict(devices=PROCS, strategy="ddp", default_root_dir=folder)
trainer = pl.Trainer(callbacks=[saves], logger=False, enable_progress_bar=False, **settings)
trainer.fit(Net(), data, ckpt_path=last if os.path.exists(last) else None)
"""
)


def marks(file: Path) -> list[tuple[str, float]]:
    """What rank 0 has written down, with its times."""
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [(word, float(when)) for word, when, _ in lines]


def wait_for(true, what: str, patience: float = 100.0):
    """Wait for something to be true; give it back."""
    end = time.monotonic() + patience
    while not (found := true()):
        if time.monotonic() > end:
            raise SystemExit(f"waited in vain for {what}")
        time.sleep(0.01)
    return found


def kill_and_watch(file: Path, after: float) -> dict[str, float]:
    """Kill the last rank in the middle, and measure until rank 0 has done a step again."""
    wait_for(lambda: "step12" in dict(marks(file)), "step 12")
    time.sleep(after)
    pid, killed = int(Path(f"{file}.pid").read_text()), time.time()
    os.kill(pid, signal.SIGKILL)

    def again() -> dict[str, float] | None:
        later: dict[str, float] = {}
        for word, when in marks(file):
            if when > killed and (word == "python" or "python" in later):
                later.setdefault("step" if word.startswith("step") else word, when)
        return later if "step" in later else None

    times = wait_for(again, "the first step after the kill")
    words = ("python", "imports", "begins", "step")
    parts = dict(
        zip(
            ("ended", "imports", "set-up", "step"),
            (times[now] - before for now, before in zip(words, (killed, *(times[word] for word in words)))),
        )
    )
    return {"all": times["step"] - killed, **parts}


def ours(project: Path, folder: Path, after: float, procs: int, device: str) -> dict[str, float]:
    """A run of ours."""
    from fsdl_dev.api import launch

    file, place = folder / "marks.txt", {"procs": procs, "gpus": int(device == "cuda"), "max_restarts": 3}
    run = launch("ours.py", args=[str(file)], on="local", folder=project, say=None, **place)
    try:
        return kill_and_watch(file, after)
    finally:
        run.cancel()
        run.wait(timeout=120, progress=False)


def peer(project: Path, folder: Path, after: float, procs: int, device: str) -> dict[str, float]:
    """torchrun and Lightning."""
    file = folder / "marks.txt"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={procs}",
        "--max-restarts=3",
    ]
    job = subprocess.Popen(
        [*command, str(project / "peer.py"), str(file)],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"},
    )
    try:
        return kill_and_watch(file, after)
    finally:
        job.terminate()
        job.wait(60)


def compare(
    rounds: int, after: float, procs: int, device: str, only: str = ""
) -> dict[str, dict[str, float]]:
    """Measure in turns: for each of the two the medians, in seconds, of the parts and of all."""
    measures = {"ours": ours, "torchrun + Lightning": peer}
    if only:
        measures = {
            name: measure
            for name, measure in measures.items()
            if name.startswith(only if only == "ours" else "torchrun")
        }
    with tempfile.TemporaryDirectory() as place:
        project = Path(place, "project")
        scripts = {
            name: text.replace("PROCS", str(procs)).replace("DEVICE", device)
            for name, text in (("ours", OURS), ("peer", PEER))
        }
        make_project(project, **scripts)
        subprocess.run(["git", "add", "-A"], cwd=project, check=True)
        subprocess.run(["git", "commit", "-qm", "a start"], cwd=project, check=True)
        os.environ.update(FSDL_STORE=f"{place}/store", FSDL_STATE=f"{place}/state", OMP_NUM_THREADS="1")
        found: dict[str, list] = {name: [] for name in measures}
        for number in range(rounds):
            for name, measure in measures.items():
                folder = Path(place, f"{name.split()[0]}{number}")
                folder.mkdir()
                found[name].append(measure(project, folder, after, procs, device))
                print(f"round {number + 1} {name:<22}{say_parts(found[name][-1])}", flush=True)
    return {
        name: {word: statistics.median(one[word] for one in all_) for word in all_[0]}
        for name, all_ in found.items()
    }


def say_parts(parts: dict[str, float]) -> str:
    """Seconds by their names."""
    return "  ".join(f"{word} {seconds:5.2f}" for word, seconds in parts.items())


def main() -> None:
    """Measure in turns and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="ours or peer")
    parser.add_argument(
        "--after",
        type=float,
        default=60,
        help="seconds of training before the kill",
    )
    parser.add_argument("--procs", type=int, default=2, help="1 on a GPU: NCCL takes one process per device")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    found = compare(**vars(parser.parse_args()))
    print("\nkill -9 of a rank to a step done again, medians in seconds")
    for name, parts in found.items():
        print(f"  {name:<22}{say_parts(parts)}")
    if len(found) == 2:
        print(
            f"  ratio {found['ours']['all'] / found['torchrun + Lightning']['all']:.2f} (aim: ours in 10 s)"
        )


if __name__ == "__main__":
    main()
