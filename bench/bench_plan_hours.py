"""How often the hours of a plan are right: twenty different small trainings, planned and then run.

    python bench/bench_plan_hours.py [--runs 20] [--steps 120] [--kinds mlp,conv,transformer,recurrent]

Each training runs once on two cores, which makes its history. Then its hours are planned, and it runs again:

- measured: on two cores. The hours that are expected, beside those that it took; right is within 25 %.
- scaled: on one core, from the run on two: by affinity these are two devices. Right is inside the range.

At the end all listed offers are planned for one of them. The aims: 9 in 10 of the measured, 8 in 10 of the scaled, and
1 s for 90 offers. A machine that does other work meanwhile gives other numbers: the load is printed.
"""

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path

import fsdl_dev
from fsdl_dev.core.settings import find_project
from fsdl_dev.records.search.store import RunStore

TRAININGS = """
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fsdl_dev


class Recurrent(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.GRU(32, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.layers(x)[0][:, -1])


def network(kind, width, depth):
    if kind == "mlp":
        layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]
        return nn.Sequential(nn.Flatten(), nn.Linear(1024, width), *layers, nn.Linear(width, 10)), (32, 32)
    if kind == "conv":
        layers = [nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()) for _ in range(depth)]
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
        return nn.Sequential(nn.Conv2d(1, width, 3, padding=1), *layers, *head), (1, 32, 32)
    if kind == "transformer":
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.0)
        parts = nn.Linear(32, width), nn.TransformerEncoder(layer, depth), nn.Flatten(), nn.Linear(32 * width, 10)
        return nn.Sequential(*parts), (32, 32)
    return Recurrent(width), (32, 32)


class Net(pl.LightningModule):
    def __init__(self, kind, width, depth):
        super().__init__()
        self.model, self.shape = network(kind, width, depth)

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


def train(kind="mlp", width=64, depth=2, batch=32, steps=100):
    torch.manual_seed(0)
    net = Net(kind, width, depth)
    data = TensorDataset(torch.randn(batch * steps, *net.shape), torch.randint(0, 10, (batch * steps,)))
    trainer = fsdl_dev.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False)
    trainer.fit(net, DataLoader(data, batch_size=batch))
"""
WIDTHS = {
    "mlp": (512, 1024, 1536),
    "conv": (8, 16, 24),
    "transformer": (32, 64, 96),
    "recurrent": (64, 128, 192),
}
BATCHES = {
    "mlp": (64, 128, 256),
    "conv": (16, 24, 32),
    "transformer": (16, 32, 64),
    "recurrent": (16, 32, 64),
}


def drawn(count: int, kinds: list[str], steps: int) -> list[dict]:
    """So many different trainings, the same ones each time."""
    chance, found = random.Random(0), []
    while len(found) < count:
        kind = kinds[len(found) % len(kinds)]
        params = {
            "kind": kind,
            "width": chance.choice(WIDTHS[kind]),
            "depth": chance.choice((1, 2)),
            "batch": chance.choice(BATCHES[kind]),
            "steps": steps,
        }
        found += [params] if params not in found else []
    return found


def busy_seconds() -> float:
    """Processor seconds that this machine has spent, of all cores."""
    user, nice, system = (int(word) for word in Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(most: float = 60.0) -> None:
    """Wait until other programs have left the processor alone for two seconds, at most so long."""
    end = time.monotonic() + most
    while time.monotonic() < end:
        before = busy_seconds()
        time.sleep(2)
        if busy_seconds() - before < 0.3:
            return


def run_on(cores: int, params: dict) -> float:
    """Seconds of a run on so many cores."""
    wait_until_quiet()
    os.sched_setaffinity(0, set(sorted(ALL_CORES)[:cores]))
    try:
        run = fsdl_dev.launch("trainings:train", params=params, no_test=True, say=None)
    finally:
        os.sched_setaffinity(0, ALL_CORES)
    run.wait(progress=False)
    assert run.state == "succeeded", run.failure.text()
    row = RunStore(find_project().store).query(limit=1)[0]
    assert row.words == run.words
    return row.seconds


def planned(cores: int, params: dict):
    """The row of a plan for so many cores."""
    return fsdl_dev.plan("trainings:train", params=params, gpus=f"cpu:{cores}", say=None).rows[0]


def one_training(params: dict) -> dict:
    """Plan and run one training on two cores and on one."""
    first = run_on(2, params)
    measured, scaled = planned(2, params), planned(1, params)
    assert (measured.step.basis, scaled.step.basis) == ("measured", "scaled"), (measured.step, scaled.step)
    again, one = run_on(2, params), run_on(1, params)
    error = measured.seconds.middle / again - 1
    words = "-".join(str(value) for value in params.values())
    print(
        f"{words:34} {first:5.1f} s, then {again:5.1f} s: planned {measured.seconds.middle:5.1f} ({error:+.0%});"
        f" one core {one:5.1f} s: planned {scaled.seconds.low:.1f} - {scaled.seconds.high:.1f}"
        f" {'' if one in scaled.seconds else 'OUTSIDE '}(load {os.getloadavg()[0]:.1f})",
        flush=True,
    )
    return {"error": error, "inside": one in scaled.seconds}


def time_offers(params: dict) -> float:
    """Seconds of a plan for all listed offers, with a model whose memory is looked at; torch is there already."""
    request = {"max_cost": 25, "steps": 1000, "sample": "1x32x32", "batch": 32, "say": None}
    own = {name: params[name] for name in ("kind", "width", "depth")}
    began = time.perf_counter()
    plan = fsdl_dev.plan("trainings:Net", params={**own, "kind": "conv"}, **request)
    took = time.perf_counter() - began
    print(f"{len(plan.rows)} offers planned in {took:.2f} s")
    return took


ALL_CORES = os.sched_getaffinity(0)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--runs", type=int, default=20)
    options.add_argument("--steps", type=int, default=120)
    options.add_argument("--kinds", default=",".join(WIDTHS))
    chosen = options.parse_args()
    if len(ALL_CORES) < 2:
        raise SystemExit("Two cores are needed.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "project"
        folder.mkdir()
        (folder / "pyproject.toml").write_text('[tool.fsdl_dev]\ntarget = "local"\nprices = {local = 0.1}\n')
        (folder / "trainings.py").write_text(TRAININGS)
        os.environ.update(FSDL_STATE=f"{name}/state", FSDL_STORE=f"{name}/store", FSDL_SLOTS="1")
        os.chdir(folder)
        trainings = drawn(chosen.runs, chosen.kinds.split(","), chosen.steps)
        found = [one_training(params) for params in trainings]
        right = sum(abs(one["error"]) <= 0.25 for one in found)
        inside = sum(one["inside"] for one in found)
        print(
            f"measured: {right} of {len(found)} within 25 %; scaled: {inside} of {len(found)} inside the range"
        )
        fsdl_dev.plan(
            "trainings:Net",
            params={"kind": "conv", "width": 8, "depth": 1},
            gpus="h100:1",
            sample="1x32x32",
            batch=2,
        )
        took = time_offers(trainings[0])
        print(
            json.dumps(
                {"measured": right, "scaled": inside, "of": len(found), "offers, seconds": round(took, 2)}
            )
        )


if __name__ == "__main__":
    main()
