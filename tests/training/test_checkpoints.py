"""Checkpoint folders on real processes: read by any layout, killed while they are written, on a full disk,
damaged, in a bucket, of another model.
"""

import os
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from ranks import fork_context, run_ranks

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.manifest import (
    MANIFEST,
    Manifest,
    Retention,
    newest_checkpoint,
    problem_with,
    read_manifest,
    require_whole,
    whole_checkpoints,
)

LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 32,
}


def train(
    layout: str,
    *,
    save: str | None = None,
    resume: str | None = None,
    steps: int = 6,
    save_at: int = 3,
    model: dict | None = None,
    optimizer: str = "adamw",
) -> list[float]:
    """A causal language model under our Trainer in this rank: the losses of all processes' samples together,
    and saved at a step.
    """
    import pytorch_lightning as pl
    import torch.distributed as dist

    from fsdl_dev.core.layout import read_layout
    from fsdl_dev.train.text import CausalLM
    from fsdl_dev.train.trainer import Trainer

    world = int(os.environ["WORLD_SIZE"])
    plan = read_layout(layout, world)
    tokens = torch.randint(0, 64, (64, 16), generator=torch.Generator().manual_seed(1))

    class Blocks(torch.utils.data.Dataset):
        def __len__(self):
            return len(tokens)

        def __getitem__(self, index):
            return {"input_ids": tokens[index]}

    class Watch(pl.Callback):
        def __init__(self):
            self.losses = []

        def on_train_batch_end(self, trainer, module, outputs, *ignored):
            loss = outputs["loss"].detach().clone()
            if world > 1:
                dist.all_reduce(loss)
            self.losses.append(float(loss) / world)
            if save and trainer.global_step == save_at:
                trainer.save_checkpoint(save)

    class Plain(CausalLM):
        def configure_optimizers(self):
            if optimizer == "sgd":
                return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)
            usual = super().configure_optimizers()
            for group in usual["optimizer"].param_groups:
                group["eps"] = (
                    1e-6  # with 1e-8 it makes steps of rounding where a gradient happens to be about 0
                )
            return usual

    torch.manual_seed(0)
    watch = Watch()
    settings = {"strategy": layout} if world > 1 else {}
    trainer = Trainer(
        max_steps=steps,
        accelerator="cpu",
        enable_model_summary=False,
        enable_progress_bar=False,
        callbacks=[watch],
        loss_guard="off",
        **settings,
    )
    trainer.fit(
        Plain("llama", {"config": {**LLAMA, **(model or {})}}, lr=1e-2, warmup=2),
        torch.utils.data.DataLoader(Blocks(), 8 // plan.data, shuffle=False),
        ckpt_path=resume,
    )
    return watch.losses


def refusal(*arguments, **settings) -> str:
    """What the person reads."""
    try:
        train(*arguments, **settings)
    except FsdlError as error:
        return str(error)
    return "nothing was refused"


def call(function_name: str, arguments: tuple, settings: dict):
    return globals()[function_name](*arguments, **settings)


def on(world: int, name: str, *arguments, **settings) -> list:
    return run_ranks(call, world, name, arguments, settings)


@pytest.mark.tier("long")
@pytest.mark.slow
def test_every_layout_reads_what_another_wrote(tmp_path):
    """The losses after the resume are those of one process to 1e-4: 2 ranks of FSDP2 to TP, DDP, one process
    and back.
    """
    whole = on(1, "train", "one")[0]
    wrote = {"one": 1, "ddp=2": 2, "fsdp=2": 2, "tp=2": 2, "fsdp=2 tp=2": 4}
    for layout, world in wrote.items():
        losses = on(world, "train", layout, save=str(tmp_path / layout.replace(" ", "-") / "step00000003"))[0]
        assert losses == pytest.approx(whole, abs=1e-4), layout
        manifest = read_manifest(tmp_path / layout.replace(" ", "-") / "step00000003")
        assert (manifest.step, manifest.world) == (3, world) and manifest.layout in (layout, "one", "ddp=2")
        require_whole(tmp_path / layout.replace(" ", "-") / "step00000003", digests=True)
    for source, target in (
        ("fsdp=2", "one"),
        ("fsdp=2", "tp=2"),
        ("tp=2", "ddp=2"),
        ("one", "fsdp=2"),
        ("fsdp=2 tp=2", "fsdp=2"),
        ("ddp=2", "fsdp=2 tp=2"),
    ):
        path = str(tmp_path / source.replace(" ", "-") / "step00000003")
        losses = on(wrote[target], "train", target, resume=path)[0]
        assert losses == pytest.approx(whole[3:], abs=1e-4), f"{source} -> {target}"


@pytest.mark.slow
def test_export_to_one_file_and_the_live_model(tmp_path):
    from fsdl_dev.models.checkpoints import read_state_dict
    from fsdl_dev.train.checkpoints.reader import export_weights
    from fsdl_dev.train.checkpoints.weights import load_weights
    from fsdl_dev.train.text import CausalLM

    folder, file = tmp_path / "step00000003", tmp_path / "last.ckpt"
    on(2, "train", "fsdp=2", save=str(folder), steps=3)
    on(1, "train", "one", save=str(file), steps=3)
    exported = read_state_dict(export_weights(folder, tmp_path / "model.safetensors"))
    alone = torch.load(file, weights_only=True)["state_dict"]
    assert set(exported) == set(alone) and all(
        torch.allclose(exported[name], alone[name], atol=1e-5) for name in alone
    )
    module = load_weights(folder, CausalLM)
    assert not module.training and torch.equal(
        module.state_dict()["model.lm_head.weight"], exported["model.lm_head.weight"]
    )
    assert load_weights(export_weights(folder, tmp_path / "one.ckpt"), CausalLM).hparams.lr == 1e-2


@pytest.mark.slow
def test_refusals_name_what_is_wrong(tmp_path):
    folder = tmp_path / "step00000003"
    on(1, "train", "one", save=str(folder), steps=3)
    other = on(1, "refusal", "one", resume=str(folder), model={"num_hidden_layers": 3})[0]
    assert "of the model's" in other and "missing in the file" in other and "model.model.layers.2." in other
    wider = on(1, "refusal", "one", resume=str(folder), model={"vocab_size": 80})[0]
    assert "file (64, 32), model (80, 32)" in wider
    fewer = on(2, "refusal", "fsdp=2", resume=str(folder), model={"num_hidden_layers": 1})
    assert "unknown to the model" in fewer[0] and "layers.1." in fewer[0] and fewer[0] == fewer[1]
    sgd = on(1, "refusal", "one", resume=str(folder), optimizer="sgd")[0]
    assert "momentum_buffer" in sgd and "exp_avg" in sgd
    data = bytearray((folder / "__0_0.distcp").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "__0_0.distcp").write_bytes(data)
    assert problem_with(folder) is None and "SHA-256 of its file __0_0.distcp" in problem_with(
        folder, digests=True
    )
    os.remove(folder / MANIFEST)
    assert "half written: its manifest.json is missing" in on(1, "refusal", "one", resume=str(folder))[0]


def save_steps(folder: Path, step: int, told: Connection) -> None:
    """In a process of its own: a checkpoint of 40 MB, said when it is asked for and when it is whole."""
    from fsdl_dev.train.checkpoints.writer import CheckpointSaver

    saver, tensors = CheckpointSaver(), {f"model.{n}": torch.full((250_000,), float(step)) for n in range(40)}
    saver.save(folder / f"step{step:08d}", tensors, {}, Manifest(step=step, files={}))
    told.send("asked")
    saver.wait()
    told.send("whole")


def start_save(folder: Path, step: int):
    "The process that saves, and what it says."
    context = fork_context()
    told, tell = context.Pipe(duplex=False)
    job = context.Process(target=save_steps, args=(folder, step, tell))
    job.start()
    return job, told


@pytest.mark.slow
def test_a_save_that_is_killed_never_becomes_the_newest(tmp_path):
    """Killed with -9 at ten moments of a save of 40 MB: the checkpoint before it stays the newest, or the new
    one is whole.
    """
    first, told = start_save(tmp_path, 1)
    assert (told.recv(), told.recv()) == ("asked", "whole")
    first.join(300)
    kills = whole = 0
    for number in range(10):
        job, told = start_save(tmp_path, 2 + number)
        assert told.recv() == "asked"
        time.sleep(0.012 * number)
        job.kill()  # it may have ended
        job.join(240)
        newest = newest_checkpoint(tmp_path)
        assert problem_with(newest, digests=True) is None
        kills += newest.name != f"step{2 + number:08d}"
        whole += newest.name == f"step{2 + number:08d}"
    assert kills, "at least one save was cut short"
    from fsdl_dev.core.manifest import tidy

    leftovers = [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    tidy(tmp_path, Retention(last=1))
    assert (
        leftovers
        and len(list(tmp_path.iterdir())) == 1
        and newest_checkpoint(tmp_path) == next(tmp_path.iterdir())
    )


FULL = """
import sys, torch
import pytorch_lightning as pl
from pathlib import Path
from fsdl_dev.train.checkpoints.folder import FolderCheckpoint
from fsdl_dev.train.trainer import Trainer
from fsdl_dev.core.errors import FsdlError

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1000, 700)
    def training_step(self, batch, index):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)

class Fill(pl.Callback):
    def on_train_batch_start(self, trainer, module, batch, index):
        if index == 6:
            with open(sys.argv[1] + "/big", "wb") as file:
                file.write(bytes(8_000_000))
        if index > 8:
            import time; time.sleep(0.1)

from fsdl_dev.core.manifest import Retention
saves = FolderCheckpoint(sys.argv[1], every_n_train_steps=5, keep=Retention(last=1))
trainer = Trainer(max_steps=60, accelerator="cpu", enable_model_summary=False, callbacks=[Fill(), saves])
try:
    trainer.fit(Net(), torch.utils.data.DataLoader(torch.randn(100, 1000), 1))
except FsdlError as error:
    print("stopped at", trainer.global_step, error, sep="\\n")
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_is_told_and_leaves_the_last_whole_one(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=22m", "tmpfs", str(disk)], capture_output=True
    ).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        (tmp_path / "run").mkdir()
        environment = {**os.environ, "FSDL_RUN_DIR": str(tmp_path / "run"), "OMP_NUM_THREADS": "1"}
        said = subprocess.run(
            [sys.executable, "-c", FULL, str(disk)],
            capture_output=True,
            text=True,
            timeout=600,
            env=environment,
        )
        assert "stopped at" in said.stdout, said.stderr[-3000:]
        assert (
            "could not be written" in said.stdout
            and "df -h" in said.stdout
            and "No space left on device" in said.stdout
        )
        assert (
            newest_checkpoint(disk).name == "step00000005"
            and problem_with(disk / "step00000005", digests=True) is None
        )
        assert [path.name for path in disk.iterdir() if path.name.startswith(".")] == [], (
            "no half checkpoint takes room"
        )
        from fsdl_dev.core.events import read_events

        notes = [
            event
            for event in read_events(tmp_path / "run" / "events")
            if event["kind"] == "note" and event["level"] == "error"
        ]
        assert notes and "df -h" in notes[0]["text"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_bucket(bucket):
    from fsdl_dev.train.checkpoints.reader import read_weights
    from fsdl_dev.train.checkpoints.writer import CheckpointSaver

    place, saver = "s3://runs/checkpoints", CheckpointSaver()
    for step in (1, 2):
        saver.save(
            f"{place}/step{step:08d}",
            {"model.weight": torch.full((1000,), float(step))},
            {"rest": {}},
            Manifest(step=step, files={}),
            wait=True,
        )
    assert newest_checkpoint(place) == f"{place}/step00000002" and len(whole_checkpoints(place)) == 2
    require_whole(f"{place}/step00000001", digests=True)
    assert float(read_weights(f"{place}/step00000002")["weight"][0]) == 2


def test_a_restart_goes_on_from_the_newer_of_disk_and_bucket(bucket, tmp_path):
    """A run may save in both; the launcher has named what it found, and the restarted ranks take the same."""
    from fsdl_dev.train.checkpoints.writer import CheckpointSaver
    from fsdl_dev.train.trainer import resume_path

    saver, near, far = CheckpointSaver(), tmp_path / "checkpoints", "s3://runs/both/step00000002"
    again = {"FSDL_RUN_DIR": str(tmp_path), "TORCHELASTIC_RESTART_COUNT": "1", "FSDL_RESUME": far}
    for path, newest in (
        (near / "step00000001", None),
        (far, far),
        (near / "step00000003", near / "step00000003"),
    ):
        saver.save(
            path,
            {"model.weight": torch.zeros(10)},
            {"rest": {}},
            Manifest(step=int(str(path)[-1]), files={}),
            wait=True,
        )
        assert newest is None or resume_path(again) == str(newest)
