"""What `make gpu` checks and measures: one function for each row of its table.

tools/gpu.py starts each row in a process of its own:

    python bench/gpu_rows.py ROW RESULT.json [--cpu]

Writes {"status", "result", "figure", ...}. --cpu is a smoke run: the same code with tiny sizes, whose figures
mean nothing.
"""

import json
import os
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from side_by_side import ROOT, use_test_helpers  # noqa: F401  use_test_helpers is bench_recovery's
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

NOISE = 0.02  # a ratio this little under its aim is the machine's
ON_GPU = "--cpu" not in sys.argv
DEVICE = "cuda" if ON_GPU else "cpu"
wait = torch.cuda.synchronize if ON_GPU else lambda: None


class Skip(Exception):
    """The row cannot run here; says why."""


def row(ok: bool, result: str, figure: float, details: dict | None = None) -> dict:
    """A row's result. `figure` is the one number to compare between machines and versions."""
    return {
        "status": "passed" if ok else "failed",
        "result": result,
        "figure": figure,
        "details": details or {},
    }


def against(found: dict, aim: float, rates: str = "") -> dict:
    """A row whose figure is a ratio to a peer; `rates` names what both reach, in `found`."""
    said = [
        f"{name} {rate:,.0f} {rates.replace('_', ' ')}"
        + (f" ({found['mfu'][name]:.1%} MFU)" if found["mfu"] else "")
        for name, rate in found.get(rates, {}).items()
    ]
    ratio = found["ratio"]
    return row(
        ratio >= aim - NOISE or not ON_GPU, f"{ratio:.3f} (aim {aim}); {', '.join(said)}", ratio, found
    )


def milliseconds(work: Callable[[], object], warm: int = 5, repeats: int = 20) -> float:
    """The median time of a call, by CUDA events after a warm-up; by the host's clock on a CPU."""
    warm, repeats = (warm, repeats) if ON_GPU else (1, 2)
    for _ in range(warm):
        work()
    wait()
    times = []
    for _ in range(repeats):
        if ON_GPU:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            began = time.perf_counter()
            work()
            times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def device() -> dict:
    """What the device reaches by itself: a copy in its memory, and a bf16 matrix product on random data."""
    from fsdl_dev.planner.devices import find_gpu

    n = 8192 if ON_GPU else 128
    a, b = (torch.randn(n, n, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    reached = 2 * n**3 / milliseconds(lambda: a @ b) / 1e9
    source = torch.randn(n, n * 8, device=DEVICE)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / milliseconds(lambda: target.copy_(source)) / 1e6
    name = torch.cuda.get_device_name() if ON_GPU else "CPU"
    known = find_gpu(name)
    share = reached / (known.flops / 1e12) if known else None
    known_share = f", {share:.0%} of the data sheet" if share else ""
    words = f"{reached:.3g} TFLOP/s bf16{known_share}; copies {copied:,.0f} GB/s"
    facts = {
        "name": name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "share_of_peak": share,
        "copy_gb_per_s": copied,
    }
    if ON_GPU:
        facts |= {
            "capability": torch.cuda.get_device_capability(),
            "memory": torch.cuda.get_device_properties(0).total_memory,
        }
        facts |= {"cudnn": torch.backends.cudnn.version(), "count": torch.cuda.device_count()}
    return row(share is None or share > 0.5, words, reached, facts)


def cells(notebook: str) -> dict:
    """All cells of a notebook, with those flagged cuda. Without nbdev they run one after the other."""
    wanted = "cuda" if ON_GPU else ""
    try:
        from nbdev.test import test_nb
    except ImportError:
        return _without_nbdev(notebook)
    os.environ["IN_TEST"] = "1"
    passed, seconds = test_nb(
        ROOT / notebook, skip_flags=["slow", "cuda", "net"], force_flags=[wanted] if wanted else []
    )
    return row(passed, f"by nbdev's test{'' if ON_GPU else ', without its cuda cells'}", seconds)


def flags(source: str) -> set[str]:
    """The words of a cell's `#| ` lines."""
    return {line.lstrip("#| ").strip() for line in source.splitlines() if line.startswith("#|")}


def _without_nbdev(notebook: str) -> dict:
    names, began, count = {"__name__": "__main__"}, time.perf_counter(), 0
    os.environ["IN_TEST"] = "1"
    os.chdir((ROOT / notebook).parent)
    left_out = {"slow", "net", "eval: false"} | (set() if ON_GPU else {"cuda"})
    for number, cell in enumerate(json.loads((ROOT / notebook).read_text())["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and not flags(source) & left_out:
            exec(compile(source, f"{notebook}#{number}", "exec"), names)  # noqa: S102
            count += 1
    return row(True, f"{count} cells without nbdev", time.perf_counter() - began)


def memory() -> dict:
    """Peak memory of a training step as planned, beside the allocator's peak: within 15 % for each model."""
    from fsdl_dev.models.timm import load_timm
    from fsdl_dev.models.transformers import load_transformer
    from fsdl_dev.planner.activations import step_loss
    from fsdl_dev.planner.advisor import advise
    from fsdl_dev.planner.devices import devices_here

    def tokens(batch: int, length: int) -> dict:
        return {"input_ids": torch.randint(0, 500, (batch, length))}

    def images(batch: int, size: int) -> tuple:
        return torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,))

    llama = {
        "vocab_size": 32000,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
    }
    models = {
        "gpt2": (lambda meta: load_transformer("causal-lm", "gpt2", meta=meta), tokens(8, 1024)),
        "llama": (
            lambda meta: load_transformer("causal-lm", "llama", config=llama, meta=meta),
            tokens(8, 1024),
        ),
        "vit_base": (
            lambda meta: load_timm("vit_base_patch16_224", num_classes=10, meta=meta),
            images(128, 224),
        ),
        "resnet50": (lambda meta: load_timm("resnet50", num_classes=10, meta=meta), images(128, 224)),
    }
    if not ON_GPU:
        models = {"vit": (lambda meta: load_timm("test_vit", num_classes=10, meta=meta), images(2, 160))}
    found = {}
    for name, (make, batch) in models.items():
        planned = advise(make(True), batch, devices_here(1), layout="one", optimizer="adamw").memory.total
        found[name] = planned, _peak(make(False), batch, step_loss)
        print(name, *found[name], flush=True)
    ratios = {name: planned / held for name, (planned, held) in found.items()}
    worst = max(ratios.values(), key=lambda ratio: abs(ratio - 1))
    said = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    text = f"planned : {'allocated' if ON_GPU else 'weights, gradients and states'}: {said}"
    return row(abs(worst - 1) < 0.15 or not ON_GPU, text, worst, {"bytes": found})


def _peak(model: torch.nn.Module, batch: object, loss_of: Callable) -> int:
    """Bytes at the peak of the third step. As in Lightning, the last gradients outlive the forward."""
    from torch.utils._pytree import tree_map

    model, batch = model.to(DEVICE).train(), tree_map(lambda tensor: tensor.to(DEVICE), batch)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    for _ in range(3):
        if ON_GPU:
            torch.cuda.reset_peak_memory_stats()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del loss
    if ON_GPU:
        return torch.cuda.max_memory_allocated()
    return sum(4 * parameter.nbytes for parameter in model.parameters())


def nccl() -> dict:
    """Collectives of one rank, and a step under DDP and FSDP2 beside the same step without."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    bound = {"device_id": torch.device("cuda", 0)} if ON_GPU else {}
    backend = "nccl" if ON_GPU else "gloo"
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1, **bound)
    values = torch.randn(2**26 if ON_GPU else 2**10, device=DEVICE)
    expected, gathered, scattered = values.clone(), torch.empty_like(values), torch.empty_like(values)
    took = milliseconds(lambda: dist.all_reduce(values))
    dist.all_gather_into_tensor(gathered, values)
    if ON_GPU:  # gloo has no reduce_scatter in some versions of torch
        dist.reduce_scatter_tensor(scattered, values)
    dist.broadcast(values, 0)
    dist.barrier()
    equal = (
        torch.equal(values, expected)
        and torch.equal(gathered, expected)
        and (not ON_GPU or torch.equal(scattered, expected))
    )
    x, losses = torch.randn(16, 64, device=DEVICE), {}
    for name, wrap in {"plain": lambda m: m, "ddp": DistributedDataParallel, "fsdp2": fully_shard}.items():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(
            DEVICE
        )
        model = wrap(model)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        for _ in range(5):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[name] = loss.item()
    dist.destroy_process_group()
    same = max(abs(loss - losses["plain"]) for loss in losses.values()) < 1e-5
    version = ".".join(map(str, torch.cuda.nccl.version())) if ON_GPU else ""
    words = f"{backend} {version}: collectives {'right' if equal else 'WRONG'}, "
    words += f"ddp and fsdp2 {'as' if same else 'NOT as'} plain; "
    words += f"all_reduce of {values.nbytes / 1e6:.3g} MB {took:.2f} ms"
    return row(equal and same, words, took, {"losses": losses})


class SameBatch:
    """A loader of one batch that is on the device already: a measurement of steps does not wait for data."""

    def __init__(self, batch: tuple, steps: int):
        self.batch, self.steps = batch, steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self):
        return iter([self.batch] * self.steps)


def bf16() -> dict:
    """Our Trainer's default precision: bf16 where the GPU has it, with the loss of float32, and faster."""
    from training import Clock, be_quiet, run_folder

    from fsdl_dev.train.trainer import Trainer
    from fsdl_dev.train.vision import ImageClassifier

    be_quiet()
    name, size, batch, steps = ("vit_small_patch16_224", 224, 64, 40) if ON_GPU else ("test_vit", 160, 4, 6)
    one = torch.randn(batch, 3, size, size, device=DEVICE), torch.randint(0, 10, (batch,), device=DEVICE)
    seconds, losses, chosen = {}, {}, {}
    for precision in ("32-true", None):
        torch.manual_seed(0)
        clock, settings = (
            Clock(steps // 2 - 1, steps - 1, DEVICE),
            {"precision": precision} if precision else {},
        )
        module = ImageClassifier(name, num_classes=10)
        with run_folder():
            trainer = Trainer(
                accelerator=DEVICE,
                max_epochs=1,
                enable_checkpointing=False,
                enable_model_summary=False,
                callbacks=[clock],
                **settings,
            )
            trainer.fit(module, SameBatch(one, steps))
        seconds[precision], losses[precision] = clock.seconds, trainer.callback_metrics["train_loss"].item()
        chosen[precision] = str(trainer.precision)
    ratio = seconds["32-true"] / seconds[None]
    wanted = "bf16-mixed" if ON_GPU and torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"
    ok = chosen[None] == wanted and abs(losses[None] - losses["32-true"]) < 0.1 * losses["32-true"]
    words = f"{ratio:.2f} times float32's speed; chose {chosen[None]}; "
    words += f"losses {losses['32-true']:.4f} and {losses[None]:.4f}"
    return row(ok, words, ratio, {"seconds": {str(key): value for key, value in seconds.items()}})


def attention() -> dict:
    """scaled_dot_product_attention, causal, bf16: which backend is taken, and how fast and exact each is."""
    shape = (12, 12, 1024, 64) if ON_GPU else (1, 2, 32, 16)
    q, k, v = (torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    right = _attend(
        SDPBackend.MATH, *(x.detach().double() if not ON_GPU else x.detach().float() for x in (q, k, v))
    )
    taken = SDPBackend(torch._fused_sdp_choice(q, k, v, is_causal=True)).name
    times, errors = {}, {}
    for backend in (
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ):
        try:
            out = _attend(backend, q, k, v)
            errors[backend.name] = ((out.float() - right.float()).norm() / right.float().norm()).item()
            times[backend.name] = milliseconds(lambda b=backend: _attend(b, q, k, v).sum().backward())
        except RuntimeError as problem:  # this build or this GPU has no such kernel
            print(backend.name, problem, flush=True)
    default = milliseconds(lambda: scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward())
    ratio = times["MATH"] / default
    exact = all(error < 2e-2 for error in errors.values())  # False for NaN as well
    said = ", ".join(
        f"{name.removesuffix('_ATTENTION').lower()} {took:.2f} ms" for name, took in times.items()
    )
    ok = exact and taken in ("FLASH_ATTENTION", "CUDNN_ATTENTION")
    words = f"{taken} is taken, {ratio:.1f} times as fast as MATH; {said}"
    return row(ok, words, ratio, {"taken": taken, "milliseconds": times, "errors": errors})


def _attend(backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, is_causal=True)


def compiled() -> dict:
    """torch.compile of CausalLM: the same loss, no graph break, and faster; a step without its optimiser."""
    from fsdl_dev.train.text import CausalLM

    small = {"n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 256, "n_positions": 64}
    large = {"vocab_size": 50304}
    sure = {
        "use_cache": False,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    config = sure | (large if ON_GPU else small)
    length, rows = (1024, 12) if ON_GPU else (64, 2)
    batch = {"input_ids": torch.randint(0, config["vocab_size"], (rows, length), device=DEVICE)}
    times, losses, first = {}, {}, 0.0
    torch._dynamo.utils.counters.clear()
    for compile_it in (
        False,
        True if ON_GPU else "aot_eager",
    ):  # inductor would want a C++ compiler for the smoke run
        torch.manual_seed(0)
        module = CausalLM("gpt2", {"config": config}, compile=compile_it).to(DEVICE).train()

        def step(module: CausalLM = module) -> torch.Tensor:
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = module.batch_loss(batch)
            module.zero_grad()
            loss.backward()
            return loss

        began = time.perf_counter()
        losses[bool(compile_it)] = step().item()
        first = time.perf_counter() - began
        times[bool(compile_it)] = milliseconds(step)
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    ratio, apart = times[False] / times[True], abs(losses[True] - losses[False])
    words = f"{ratio:.2f} times eager ({times[False]:.1f} to {times[True]:.1f} ms); {breaks} graph breaks; "
    words += f"first step {first:.0f} s; losses {apart:.1e} apart"
    print(*torch._dynamo.utils.counters["graph_break"], sep="\n", flush=True)
    ok = apart < 0.02 and (not breaks and ratio > 1 or not ON_GPU)
    return row(ok, words, ratio, {"milliseconds": {"eager": times[False], "compiled": times[True]}})


def gpt2() -> dict:
    """MFU of GPT-2 124M beside nanoGPT's recipe."""
    import bench_gpt2

    rounds, steps = (4, 60) if ON_GPU else (1, 6)
    return against(bench_gpt2.compare(rounds, steps, DEVICE, compiled=True), 1.0, "tokens_per_second")


def vit() -> dict:
    """ViT-B/16 beside timm's loop, from the same loader."""
    import bench_vit

    rounds, steps, batch, workers = (3, 60, 256, min(8, os.cpu_count() or 1)) if ON_GPU else (1, 6, 4, 0)
    shared = shutil.disk_usage("/dev/shm").free // (
        4 * batch * 3 * 224**2
    )  # a worker has up to three batches there
    workers = min(workers, shared)
    found = bench_vit.compare(rounds, steps, batch, workers, DEVICE, compiled=False)
    return against(found, 1.0, "images_per_second")


def loop() -> dict:
    """Our Trainer beside a loop written by hand, at 50 ms a step."""
    import bench_loop

    rounds, steps, ms = (3, 70, 50.0) if ON_GPU else (1, 10, 2.0)
    found = bench_loop.compare(rounds, steps, ms, DEVICE, only=("raw", "plain Lightning", "ours"))
    loops = found["loops"]
    made = against(found | {"ratio": loops["ours"]["ratio"]}, 0.98)
    plain, added = loops["plain Lightning"]["ratio"], loops["ours"]["added_us"]
    made["result"] += (
        f"{found['milliseconds']:.1f} ms a step, {added:+.0f} µs of CPU; plain Lightning {plain:.3f}"
    )
    return made


def recovery() -> dict:
    """kill -9 of the rank to a step done again, in a run of ours beside torchrun with Lightning."""
    import bench_recovery

    if not shutil.which("git"):
        raise Skip("git is not installed")
    found = bench_recovery.compare(1, 5 if ON_GPU else 1, 1, DEVICE, "" if ON_GPU else "ours")
    seconds = found["ours"]["all"]
    said = "; ".join(f"{name}: {bench_recovery.say_parts(parts)}" for name, parts in found.items())
    return row(seconds < 10 or not ON_GPU, f"{seconds:.1f} s (aim: under 10); {said}", seconds, found)


def main(name: str, result: Path) -> None:
    function, _, argument = name.partition(":")
    try:
        found = globals()[function](*([argument] if argument else []))
    except Skip as reason:
        found = {"status": "skipped", "result": str(reason)}
    except ModuleNotFoundError as problem:
        if (problem.name or "fsdl_dev").startswith("fsdl_dev"):
            raise
        found = {"status": "skipped", "result": f"needs the package {problem.name.partition('.')[0]}"}
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
