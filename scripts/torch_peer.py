#!/usr/bin/env python3
"""Trains xrun's model with PyTorch on random tokens and prints the speed as a line of JSON.

    torch_peer.py --model dim768                                   # torch.compile, bf16 autocast
    torch_peer.py --model dim768 --pad --mode graphs --recompute
    torch_peer.py --model base-160m --seq 1024 --batch 16 --pad --mode graphs --attention cudnn
    torch_peer.py --model 768,18,12,12,64,2048 --seq 512 --batch 24 --precision fp32
    torch_peer.py --model base-160m --seq 1024 --batch 16 --pad --mode graphs --fp8
    torch_peer.py --model dim384 --turns                           # measures once per line on stdin
    torch_peer.py --model dim384 --rows                            # a line per step, for `xrun compare --before-cmd`
    torchrun --nproc_per_node 4 torch_peer.py --model dim768       # DDP: --batch sequences on each of 4 GPUs
    torchrun --nproc_per_node 4 torch_peer.py --model dim768 --parallel fsdp2 --reduce bf16

This is what a PyTorch user would write: fp32 master weights, autocast to bf16, SDPA, RMSNorm and cross-entropy from
torch.nn, fused AdamW, clipping by the global norm. Embedding and head are not tied. With --pad, FFN and vocabulary are
rounded up to multiples of 64, as xrun pads them in memory. With --fp8, the linear layers of the blocks multiply 8-bit
floats, scaled by their own largest number; a layer with a side that is no multiple of 16 stays in bf16.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

VOCAB = 50_257
EPS = 1e-6
# Set by torchrun; without it there is one process.
RANK, LOCAL_RANK = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
COMPILED = {"compile": "default", "graphs": "reduce-overhead", "autotune": "max-autotune"}
# Attention kernels that --attention can force.
ATTENTION = ("cudnn", "flash")


@dataclass(frozen=True)
class Shape:
    """Sizes of the model."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int = VOCAB

    def padded(self) -> "Shape":
        """Rounds FFN and vocabulary up to multiples of 64."""
        return replace(self, ffn=-(-self.ffn // 64) * 64, vocab=-(-self.vocab // 64) * 64)


PRESETS = {
    "dim384": Shape(384, 12, 12, 12, 32, 1536),
    "dim768": Shape(768, 18, 24, 24, 32, 2048),
    "dim1024": Shape(1024, 18, 32, 32, 32, 2730),
    "base-160m": Shape(768, 12, 12, 12, 64, 2048),
    "qwen3-0.6b-shape": Shape(1024, 28, 16, 8, 128, 3072),
}


def linear(inputs: int, outputs: int) -> nn.Linear:
    """Makes a linear layer without bias; weights are normal with a standard deviation of 0.02."""
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=0.02)
    return layer


class Attention(nn.Module):
    """Rotary grouped-query attention with normalized queries and keys."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.groups = [shape.heads, shape.kv_heads, shape.kv_heads]
        self.head_dim = shape.head_dim
        self.qkv = linear(shape.dim, sum(self.groups) * shape.head_dim)
        self.q_norm = nn.RMSNorm(shape.head_dim, eps=EPS)
        self.k_norm = nn.RMSNorm(shape.head_dim, eps=EPS)
        self.out = linear(shape.heads * shape.head_dim, shape.dim)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        packed = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        q, k, v = packed.split(self.groups, dim=2)
        q, k = rotate(self.q_norm(q), turns), rotate(self.k_norm(k), turns)
        q, k, v = (t.to(packed.dtype).transpose(1, 2) for t in (q, k, v))
        shared = self.groups[0] != self.groups[1]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)
        return self.out(y.transpose(1, 2).flatten(2))


def rotate(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Applies RoPE in fp32 to [batch, position, head, dim], in the rotate-half layout."""
    cos, sin = turns
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Block(nn.Module):
    """A pre-norm block: attention and SwiGLU, each with a residual connection."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(shape.dim, eps=EPS), nn.RMSNorm(shape.dim, eps=EPS)
        self.attention = Attention(shape)
        self.gate_up = linear(shape.dim, 2 * shape.ffn)
        self.down = linear(shape.ffn, shape.dim)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.attention_norm(x), turns)
        gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    """The decoder. Its forward returns the mean loss of a batch."""

    def __init__(self, shape: Shape, seq: int, recompute: bool):
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.dim)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim, eps=EPS)
        self.head = linear(shape.dim, shape.vocab)
        self.recompute = recompute
        frequencies = 10_000.0 ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        angles = torch.arange(seq)[:, None, None] * frequencies
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if torch.is_autocast_enabled(x.device.type):
            x = x.bfloat16()
        turns = (self.cos, self.sin)
        for block in self.blocks:
            x = checkpoint(block, x, turns, use_reentrant=False) if self.recompute else block(x, turns)
        return self.loss(x, targets)

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def rounded(x: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    """Rounds a matrix to 8-bit floats, and returns them and the factor that undoes their scale, or one for each row."""
    largest = torch.finfo(dtype).max
    size = x.abs().amax(1, keepdim=True) if rowwise else x.abs().amax()
    # In fp64, so that compiled scales are those of eager mode.
    scale = (largest / size.double().clamp(min=1e-12)).float()
    return (x.float() * scale).clamp(-largest, largest).to(dtype), scale.reciprocal()


def multiplied(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor) -> Tensor:
    """Multiplies the rows of 8-bit matrices with accurate accumulation. Hopper needs the rows of both in one piece."""
    a, b = a.contiguous(), b.contiguous().t()
    return torch._scaled_mm(a, b, a_scale, b_scale.t(), out_dtype=torch.bfloat16, use_fast_accum=False)


# Traced by Dynamo instead, products would be kept despite --recompute in PyTorch 2.11.
@torch.compiler.allow_in_graph
class Product8(torch.autograd.Function):
    """The product of a linear layer in 8-bit floats, with its gradients. Rowwise, that of the weight stays in bf16."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, rowwise: bool) -> Tensor:
        a, b = rounded(x, torch.float8_e4m3fn, rowwise), rounded(weight, torch.float8_e4m3fn, rowwise)
        ctx.rowwise = rowwise
        ctx.save_for_backward(*((x, weight) if rowwise else (*a, *b)))
        return multiplied(*a, *b)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        g, g_scale = rounded(gradient, torch.float8_e5m2, ctx.rowwise)
        if ctx.rowwise:
            x, weight = ctx.saved_tensors
            b = rounded(weight.t(), torch.float8_e4m3fn, ctx.rowwise)
            return multiplied(g, g_scale, *b), gradient.t() @ x, None
        a, a_scale, b, b_scale = ctx.saved_tensors
        return multiplied(g, g_scale, b.t(), b_scale), multiplied(g.t(), g_scale, a.t(), a_scale), None


class Linear8(nn.Module):
    """A linear layer that multiplies 8-bit floats."""

    def __init__(self, layer: nn.Linear, rowwise: bool):
        super().__init__()
        self.weight, self.rowwise = layer.weight, rowwise

    def forward(self, x: Tensor) -> Tensor:
        y = Product8.apply(x.flatten(0, -2).bfloat16(), self.weight, self.rowwise)
        return y.unflatten(0, x.shape[:-1])


def fits(layer: nn.Module) -> bool:
    """Tells whether this is a linear layer that 8-bit products can take."""
    return isinstance(layer, nn.Linear) and layer.in_features % 16 == layer.out_features % 16 == 0


def convert(blocks: nn.ModuleList, how: str) -> None:
    """Lets the linear layers of the blocks multiply 8-bit floats."""
    if how == "torchao":
        try:
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        except ImportError as error:
            sys.exit(f"--fp8 torchao needs the package torchao: {error}")
        config = Float8LinearConfig.from_recipe_name("tensorwise")
        convert_to_float8_training(blocks, config=config, module_filter_fn=lambda layer, _: fits(layer))
        return
    for module in list(blocks.modules()):
        for name, layer in list(module.named_children()):
            if fits(layer):
                setattr(module, name, Linear8(layer, how == "rowwise"))


def sharded(model: Model, args: argparse.Namespace) -> nn.Module:
    """Applies FSDP2 to each block and to the rest.

    Parameters stay gathered from the forward to the backward, because memory is not the limit here.
    """
    reduce = torch.bfloat16 if args.reduce == "bf16" else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
    for block in model.blocks:
        if args.mode != "eager":
            block.compile(mode=COMPILED[args.mode])
        fully_shard(block, mp_policy=policy, reshard_after_forward=False)
    if args.mode != "eager":
        model.loss = torch.compile(model.loss, mode=COMPILED[args.mode])
    return fully_shard(model, mp_policy=policy, reshard_after_forward=False)


def adamw(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Returns the optimizer of a model, which decays matrices alone."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


def trainer(args: argparse.Namespace, shape: Shape) -> Callable[[], Tensor]:
    """Returns a function that takes one optimizer step and returns its loss, still on the device."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = args.precision == "tf32"
    if args.attention in ATTENTION:
        torch.backends.cuda.enable_cudnn_sdp(args.attention == "cudnn")
        torch.backends.cuda.enable_flash_sdp(args.attention == "flash")
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_math_sdp(False)
    model = Model(shape, args.seq, args.recompute).to(args.device)
    if args.fp8:
        convert(model.blocks, args.fp8)
    fsdp = WORLD > 1 and args.parallel == "fsdp2"
    network = sharded(model, args) if fsdp else model
    optimizer = adamw(model, 3e-4)
    if WORLD > 1 and not fsdp:
        views = {"static_graph": True, "gradient_as_bucket_view": True}
        network = DistributedDataParallel(model, device_ids=[LOCAL_RANK] if args.device == "cuda" else None, **views)
        if args.reduce == "bf16":
            network.register_comm_hook(None, bf16_compress_hook)
    if args.mode != "eager" and not fsdp:
        network = torch.compile(network, mode=COMPILED[args.mode])
    # Every rank has its own batches. Tokens are below the real vocabulary size even if the model's is padded.
    torch.manual_seed(1 + RANK)
    windows = torch.randint(args.vocab, (16, args.batch, args.seq + 1), device=args.device)
    batches = [(w[:, :-1].contiguous(), w[:, 1:].contiguous()) for w in windows]
    taken = 0

    def step() -> Tensor:
        nonlocal taken
        tokens, targets = batches[taken % len(batches)]
        taken += 1
        with torch.autocast(args.device, torch.bfloat16, enabled=args.precision == "bf16" and not fsdp):
            loss = network(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # DDP's gradients are views of its buckets, so they are zeroed instead of freed.
        optimizer.zero_grad(set_to_none=WORLD == 1 or fsdp)
        return loss.detach()

    return step


def measure(args: argparse.Namespace, step: Callable[[], Tensor]) -> dict[str, object]:
    """Times steps in a row, as a training loop takes them, then as many steps with a wait after each."""
    wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None

    def timed(count: int) -> float:
        wait()
        began = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        return (time.perf_counter() - began) / count

    seconds = timed(args.steps)
    single = statistics.median(timed(1) for _ in range(args.steps))
    return {
        "tok_s": round(WORLD * args.batch * args.seq / seconds),
        "step_ms": round(seconds * 1e3, 3),
        "single_step_ms": round(single * 1e3, 3),
        "peak_mib": round(torch.cuda.max_memory_allocated() / 2**20) if args.device == "cuda" else None,
    }


def rows(args: argparse.Namespace, step: Callable[[], Tensor]) -> None:
    """Prints a line per step for `xrun compare`, without the losses, which mean nothing on random tokens.

    On a GPU, the times come from events between the steps, so the loop does not wait after each step.
    """
    if args.device == "cuda":
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(args.steps + 1)]
        marks[0].record()
    else:
        marks = [time.perf_counter()]
    for i in range(args.steps):
        step()
        if args.device == "cuda":
            marks[i + 1].record()
        else:
            marks.append(time.perf_counter())
    if args.device == "cuda":
        torch.cuda.synchronize()
        times = [before.elapsed_time(after) for before, after in pairwise(marks)]
    else:
        times = [(after - before) * 1e3 for before, after in pairwise(marks)]
    for i, step_ms in enumerate(times, 1):
        tok_s = WORLD * args.batch * args.seq / step_ms * 1e3
        if RANK == 0:
            print(json.dumps({"step": i, "step_ms": step_ms, "tok_s": tok_s}), flush=True)


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", default="dim768", help="dim384, dim768, dim1024, or dim,layers,heads,kv_heads,head_dim,ffn"
    )
    parser.add_argument("--mode", default="compile", choices=["eager", *COMPILED])
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32", "tf32"])
    parser.add_argument(
        "--fp8",
        nargs="?",
        const="tensorwise",
        choices=["tensorwise", "rowwise", "torchao"],
        help="let the blocks multiply 8-bit floats, with a scale per matrix (the default) or per row and accurate "
        "accumulation everywhere, or with torchao's tensorwise recipe, which accumulates the forward pass fast",
    )
    parser.add_argument(
        "--attention", default="auto", choices=["auto", *ATTENTION], help="force one attention kernel instead of PyTorch's choice"
    )
    parser.add_argument("--batch", type=int, default=32, help="sequences per GPU")
    parser.add_argument("--seq", type=int, default=256, help="tokens per sequence")
    parser.add_argument("--vocab", type=int, default=VOCAB)
    parser.add_argument("--pad", action="store_true", help="round FFN and vocabulary up to multiples of 64")
    parser.add_argument("--recompute", action="store_true", help="keep only the inputs of blocks and recompute the rest")
    parser.add_argument("--parallel", default="ddp", choices=["ddp", "fsdp2"], help="how several GPUs share the work")
    parser.add_argument("--reduce", default="fp32", choices=["fp32", "bf16"], help="format in which ranks sum gradients")
    parser.add_argument("--warmup", type=int, default=12, help="steps before the measurement")
    parser.add_argument("--steps", type=int, default=30, help="measured steps")
    parser.add_argument("--turns", action="store_true", help="measure once for every line on stdin")
    parser.add_argument("--rows", action="store_true", help="print a JSON line per measured step instead of one in total")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    args = parser.parse_args()
    if args.fp8 and args.precision != "bf16":
        parser.error("--fp8 needs --precision bf16")
    if args.fp8 and args.batch * args.seq % 16:
        parser.error("--fp8 needs a multiple of 16 tokens per step")
    return args


def main() -> None:
    """Warms up and measures; with --turns, reports when it is ready."""
    args = arguments()
    shape = PRESETS[args.model] if args.model in PRESETS else Shape(*map(int, args.model.split(",")))
    shape = replace(shape, vocab=args.vocab)
    if args.pad:
        shape = shape.padded()
    about = {key: value for key, value in vars(args).items() if key not in ("turns", "warmup", "device")}

    def say(**more: object) -> None:
        if RANK > 0:
            return
        print(json.dumps({**about, "torch": torch.__version__, "world": WORLD, **more}), flush=True)

    if WORLD > 1:
        if args.device == "cuda":
            torch.cuda.set_device(LOCAL_RANK)
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    try:
        step = trainer(args, shape)
        for _ in range(args.warmup):
            loss = step()
        if args.rows:
            rows(args, step)
            return
        if args.turns:
            say(ready=True, loss=round(loss.item(), 3))
        for _ in sys.stdin if args.turns else [None]:
            say(**measure(args, step))
    except torch.OutOfMemoryError:
        say(error="out of memory")
    finally:
        if WORLD > 1:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
