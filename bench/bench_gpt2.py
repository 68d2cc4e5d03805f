"""MFU of GPT-2 124M: nanoGPT's published recipe written by hand, beside CausalLM under our Trainer.

    python bench/bench_gpt2.py [--rounds 5] [--steps 60]    on a GPU: bf16, torch.compile, 12 × 1,024 tokens
    python bench/bench_gpt2.py --tiny                       on a CPU: two small layers, to see that it runs

With fused AdamW and flash attention, both train the same sizes on the same random tokens in this process, in
turns; another one begins each round. By hand: nanoGPT's train.py and model.py (github.com/karpathy/nanoGPT,
config train_gpt2.py: vocabulary padded to 50,304, no dropout, biases as given, AdamW (0.9, 0.95) with weight
decay 0.1 on matrices, gradients clipped at 1.0, batches from pinned memory, one micro-batch a step), without
its every-tenth `.item()` of the loss, which favours it. Ours: CausalLM("gpt2") of Transformers under the
Trainer in a run, with events, speed meter and stop handling. Utilisation is tokens per second × (6N +
12·L·H·Q·T) / peak for both, so the ratio is one of tokens per second. The aim: at least 1. The first steps,
which compile, are not counted.
"""

import argparse
import math
import statistics

import torch
from side_by_side import measure
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.data import DataLoader, Dataset
from training import Clock, be_quiet, median_ratio, run_folder

from fsdl_dev.planner.devices import find_gpu
from fsdl_dev.train.text import CausalLM
from fsdl_dev.train.trainer import Trainer

SIZES = {"layers": 12, "heads": 12, "width": 768, "vocabulary": 50304, "length": 1024, "batch": 12}
TINY = {"layers": 2, "heads": 2, "width": 64, "vocabulary": 256, "length": 64, "batch": 4}


class Block(nn.Module):
    """nanoGPT's Block: attention and MLP, each behind a layer norm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.attention(self.ln_1(x)).split(width, dim=2)
        )
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.down(gelu(self.up(self.ln_2(x))))


class Gpt(nn.Module):
    """nanoGPT's GPT, output and token table shared."""

    def __init__(self, layers: int, heads: int, width: int, vocabulary: int, length: int, **ignored):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.tokens.weight = self.head.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(
                    parameter,
                    std=0.02 / math.sqrt(2 * layers)
                    if name.endswith(("attention_out.weight", "down.weight"))
                    else 0.02,
                )

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-1)


class Blocks(Dataset):
    """Blocks of a stream of random tokens, as TextData gives them."""

    def __init__(self, stream: torch.Tensor, length: int, count: int):
        self.stream, self.length, self.count = stream, length, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start = index * self.length % (len(self.stream) - self.length - 1)
        return {"input_ids": self.stream[start : start + self.length].long()}


class Both:
    """The two trainings; each keeps its compiled model from round to round."""

    def __init__(self, sizes: dict, steps: int, warm: int, device: str, compiled: bool):
        self.sizes, self.steps, self.warm, self.device = sizes, steps, warm, device
        self.stream = torch.randint(0, sizes["vocabulary"], (2_000_000,), dtype=torch.int32)
        torch.manual_seed(0)
        self.hand = Gpt(**sizes).to(device)
        if compiled:
            self.hand.compile()
        config = {
            "n_layer": sizes["layers"],
            "n_head": sizes["heads"],
            "n_embd": sizes["width"],
            "vocab_size": sizes["vocabulary"],
            "n_positions": sizes["length"],
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "use_cache": False,
        }
        self.module = CausalLM("gpt2", {"config": config}, lr=6e-4, weight_decay=0.1, compile=compiled)
        mine, theirs = (sum(p.numel() for p in m.parameters()) for m in (self.module.model, self.hand))
        assert mine == theirs, (mine, theirs)
        self.parameters = theirs - sizes["length"] * sizes["width"]  # position embeddings are looked up

    def clock(self) -> Clock:
        return Clock(self.warm - 1, self.steps - 1, self.device)

    def by_hand(self) -> float:  # seconds
        sizes, device = self.sizes, self.device
        decayed, spared = (
            [p for p in self.hand.parameters() if (p.ndim > 1) == matrix] for matrix in (True, False)
        )
        optimiser = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.1}, {"params": spared, "weight_decay": 0.0}],
            lr=6e-4,
            betas=(0.9, 0.95),
            fused=device == "cuda",
        )

        def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
            starts = torch.randint(len(self.stream) - sizes["length"] - 1, (sizes["batch"],)).tolist()
            x = torch.stack([self.stream[i : i + sizes["length"]].long() for i in starts])
            y = torch.stack([self.stream[i + 1 : i + 1 + sizes["length"]].long() for i in starts])
            if device == "cuda":
                x, y = x.pin_memory(), y.pin_memory()
            return x.to(device, non_blocking=True), y.to(device, non_blocking=True)

        clock, (x, y) = self.clock(), get_batch()
        self.hand.train()
        for step in range(self.steps):
            with torch.autocast(device, torch.bfloat16):
                loss = self.hand(x, y)
            x, y = get_batch()  # while the device computes, as nanoGPT does
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.hand.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            clock.step(step)
        return clock.seconds

    def ours(self) -> float:  # seconds
        clock, on_gpu = self.clock(), self.device == "cuda"
        data = Blocks(self.stream, self.sizes["length"], self.steps * self.sizes["batch"])
        loader = DataLoader(data, self.sizes["batch"], pin_memory=on_gpu, num_workers=2 if on_gpu else 0)
        plain = {"enable_checkpointing": False, "enable_model_summary": False}
        with run_folder():
            trainer = Trainer(
                max_epochs=1,
                accelerator=self.device,
                precision="bf16-mixed",
                gradient_clip_val=1.0,
                callbacks=[clock],
                **plain,
            )
            trainer.fit(self.module, loader)
        return clock.seconds


def compare(rounds: int, steps: int, device: str, compiled: bool) -> dict:
    """Tokens per second and utilisation of each, and the ratio. On a CPU two small layers, not compiled."""
    be_quiet()
    torch.set_float32_matmul_precision("high")  # TF32, as nanoGPT has it; both share it
    sizes, compiled = (SIZES, compiled) if device == "cuda" else (TINY, False)
    both = Both(sizes, steps, steps // 3, device, compiled)
    times = measure({"nanoGPT's recipe": both.by_hand, "fsdl_dev": both.ours}, rounds, rotate=True)
    gpu = find_gpu(torch.cuda.get_device_name()) if device == "cuda" else None
    tokens = (steps - both.warm) * sizes["batch"] * sizes["length"]
    # 6N + 12·L·H·Q·T (PaLM, arXiv:2204.02311, appendix B); H heads of Q dimensions are the width
    per_token = 6 * both.parameters + 12 * sizes["layers"] * sizes["width"] * sizes["length"]
    rates = {name: tokens / statistics.median(seconds) for name, seconds in times.items()}
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "parameters": both.parameters,
        "flops_per_token": per_token,
        "peak": gpu.flops if gpu else None,
        "tokens_per_second": rates,
        "mfu": {name: rate * per_token / gpu.flops for name, rate in rates.items()} if gpu else {},
        "ratio": median_ratio(*times.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="two small layers on a CPU, not compiled")
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here; --tiny runs the same code on a CPU")
    device, steps = ("cpu", 12) if options.tiny else ("cuda", options.steps)
    found = compare(options.rounds, steps, device, not options.no_compile)
    print(
        f"{found['device']}: N = {found['parameters']:,} without positions, "
        f"{found['flops_per_token']:.4g} FLOPs a token by 6N + 12LHQT"
    )
    for name, rate in found["tokens_per_second"].items():
        known = (
            f"{found['mfu'][name]:.1%} of {found['peak'] / 1e12:.4g} TFLOP/s"
            if found["peak"]
            else "utilisation unknown: no peak for this device"
        )
        print(f"{name:<18} {rate:12,.0f} tokens/s   {known}")
    print(f"fsdl_dev : nanoGPT's recipe {found['ratio']:.4f} (median of the rounds' ratios; aim: at least 1)")


if __name__ == "__main__":
    main()
