#!/usr/bin/env python3
"""Measures how fast xrun and PyTorch train the texts of data/models/ideas, in turns on one NVIDIA GPU.

    model_text_speed.py XRUN                                  # the texts whose peers are classes of transformers
    model_text_speed.py XRUN --modded-nanogpt CLONE --turns 2 --json speed.json
    model_text_speed.py XRUN --text gemma2 --modes default max-autotune-no-cudagraphs
    model_text_speed.py XRUN --tune data/algorithms/nvidia-h200-130100.json
    model_text_speed.py XRUN --tiny --modded-nanogpt CLONE    # a dry run on the CPU; its speeds mean nothing

Peers are the models with which scripts/model_texts.py compares the texts, at 12 blocks of width 768, vocabulary
32,768, 16 sequences of 2,048 random tokens. They train as fast as torch.compile makes them without a change to their
blocks:

- fp32 master weights and bf16 activations, as in xrun. The embedding's rows are rounded to bf16. Classes of
  transformers run in autocast; the two scripts of modded-nanogpt cast by themselves.
- Attention is PyTorch's SDPA. transformers gives it an explicit mask when torch before 2.14 compiles the model, which
  rules out the fastest kernels; here it gets none and is causal. Gemma 2's class refuses SDPA because of its capped
  scores. It has FlexAttention, with masks that are made once. If values are narrower than keys and SDPA would choose
  none of its fastest kernels, values are padded with zeros, as transformers does for FlashAttention 2.
- The loss is compiled with the model, so that logits are no output. For classes of transformers it is their own.
- Gradients are clipped to a norm of 1. AdamW is fused and decays. There is no dropout, and TF32 is off.

Both speeds are medians over steps: of a peer, 30 steps between CUDA events; of xrun, `tok_s` in summary.json. With
several `--modes` of torch.compile, xrun is compared with the fastest. A text that fails is reported, the others are
measured, and the script exits with 1. The last column has the attention that the peer was asked for and the ops that
a step called. nanochat_2026 has a script of its own, nanochat_peer.py.

Needs torch, transformers and safetensors.
"""

import argparse
import json
import math
import multiprocessing
import re
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import model_texts
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.profiler import ProfilerActivity, profile
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

BATCH, STEPS, WARMUP, SETTLING = 16, 30, 10, 3
XRUN_STEPS, TINY_STEPS, TINY_BATCH = 50, 12, 2
# The longest time in seconds that compiling and the first steps may take.
PATIENCE = 400
LARGE = {"dim": 768, "layers": 12, "heads": 6, "kv_heads": 6, "head_dim": 128, "vocab": 32_768, "seq": 2048}
# A pair of heads has values of twice the width, so heads are narrower.
SHAPES = {"gemma2": {"window": 1024}, "differential_attention": {"heads": 12, "kv_heads": 12, "head_dim": 64}}
# The scripts' feed-forward layers have four times the width; those of the other texts are gated.
FFN = {"u_net": 3072, "modded_nanogpt": 3072}
KEYS = {"data.corpus": "random", "data.tokenizer": "byte", "checkpoint.interval": 0, "generation.samples": 0}


def sized(name: str, case: model_texts.Case, tiny: bool) -> model_texts.Shape:
    """Returns the sizes at which a text is measured."""
    # FlexAttention does not train on the CPU.
    attention = "sdpa" if name != "gemma2" else "eager" if tiny else "flex_attention"
    if tiny:
        return replace(case.shape, layers=2, kv_heads=case.shape.heads, seq=64, attention=attention)
    return replace(case.shape, **LARGE | SHAPES.get(name, {}), ffn=FFN.get(name, 2048), attention=attention)


class Peer:
    """A reference with its optimizer, compiled in one of torch.compile's modes."""

    def __init__(self, case: model_texts.Case, shape: model_texts.Shape, mode: str, device: str):
        self.shape, self.device = shape, device
        self.batch = BATCH if device == "cuda" else TINY_BATCH
        with torch.device(device):
            self.model = case.build(shape, False).train()
        self.in_transformers = isinstance(self.model, transformers.PreTrainedModel)
        embedding = next(module for module in self.model.modules() if isinstance(module, nn.Embedding))
        embedding.register_forward_hook(lambda module, inputs, rows: rows.bfloat16())
        self.masks = block_masks(shape, device) if shape.attention == "flex_attention" else None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
        if not self.in_transformers:
            # Their tables of angles are made in the first call, which would be compiled for itself.
            with torch.no_grad():
                self.loss(*self.tokens())
        options = {"mode": mode} if device == "cuda" else {"backend": "aot_eager"}
        self.compiled = torch.compile(self.loss, dynamic=False, **options)

    def tokens(self) -> tuple[Tensor, Tensor]:
        windows = torch.randint(0, self.shape.vocab, (self.batch, self.shape.seq + 1), device=self.device)
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        if self.in_transformers:
            return self.model(tokens, attention_mask=self.masks, labels=tokens).loss
        return self.model(tokens, targets)

    def step(self) -> Tensor:
        cast = torch.autocast(self.device, torch.bfloat16) if self.in_transformers else nullcontext()
        with cast:
            loss = self.compiled(*self.tokens())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def start(self) -> dict[str, object]:
        """Compiles and warms up. Returns what is worth knowing of it."""
        began = time.perf_counter()
        losses = [self.step().item() for _ in range(WARMUP if self.device == "cuda" else 2)]
        if not all(map(math.isfinite, losses)):
            raise RuntimeError(f"the losses are {losses}")
        seconds = time.perf_counter() - began
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            self.step()
        names = {event.key for event in profiled.key_averages() if re.search("attention|flex", event.key)}
        return {
            "compiling_s": seconds,
            "loss": losses[-1],
            "attention": [self.shape.attention, *sorted(name for name in names if "backward" not in name)],
            "reserved_bytes": torch.cuda.max_memory_reserved() if self.device == "cuda" else None,
        }

    def rate(self) -> float:
        """Returns tokens per second: the median over steps, after a few that are not timed."""
        tokens = self.batch * self.shape.seq
        if self.device != "cuda":
            began = time.perf_counter()
            self.step()
            return tokens / (time.perf_counter() - began)
        for _ in range(SETTLING):
            self.step()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
        events[0].record()
        for event in events[1:]:
            self.step()
            event.record()
        torch.cuda.synchronize()
        return tokens / statistics.median(a.elapsed_time(b) for a, b in zip(events, events[1:])) * 1e3


def block_masks(shape: model_texts.Shape, device: str) -> dict[str, BlockMask]:
    """Makes the masks of Gemma 2's two kinds of blocks."""

    def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def windowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query - key < shape.window)

    make = partial(create_block_mask, B=None, H=None, Q_LEN=shape.seq, KV_LEN=shape.seq, device=device)
    return {"full_attention": make(causal), "sliding_attention": make(windowed)}


def use_causal_sdpa(pad: bool) -> None:
    """Lets transformers call SDPA without a mask, and with values as wide as keys if `pad`."""
    ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] = lambda *args, **kwargs: None
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def padded(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *rest: object, **named: object) -> tuple:
        out, _ = plain(module, q, k, F.pad(v, (0, k.shape[-1] - v.shape[-1])), *rest, **named)
        return out[..., : v.shape[-1]], None

    if pad:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = padded


def gains_by_padding(shape: model_texts.Shape, device: str) -> bool:
    """Tells whether SDPA has no fast kernel for keys of one and a half times the values' width."""
    if device != "cuda":
        return True
    q, v = (
        torch.zeros(BATCH, shape.heads, shape.seq, width, device=device, dtype=torch.bfloat16, requires_grad=True)
        for width in (shape.head_dim + shape.head_dim // 2, shape.head_dim)
    )
    chosen = SDPBackend(torch._fused_sdp_choice(q, q, v, None, 0.0, True))
    return chosen not in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)


def serve(channel: Connection, name: str, args: argparse.Namespace) -> None:
    """Trains the peers of a text, one for each mode, in a process of its own: a turn for each message."""
    device = "cpu" if args.tiny else "cuda"
    try:
        channel.recv()
        case = model_texts.cases(args)[name]
        shape = sized(name, case, args.tiny)
        use_causal_sdpa(name == "latent_attention" and gains_by_padding(shape, device))
        peers = {mode: Peer(case, shape, mode, device) for mode in args.modes}
        channel.send({mode: peer.start() for mode, peer in peers.items()})
        while channel.recv() is not None:
            channel.send({mode: peer.rate() for mode, peer in peers.items()})
    except EOFError:
        pass
    except Exception:
        channel.send(traceback.format_exc())


def ask(channel: Connection, name: str) -> dict[str, object]:
    """Sends a message to a peer's process and returns the answer."""
    try:
        channel.send("next")
        if not channel.poll(PATIENCE):
            raise RuntimeError(f"the peer of {name} did not answer in {PATIENCE} seconds")
        answer = channel.recv()
    except (EOFError, BrokenPipeError) as error:
        raise RuntimeError(f"the process of the peer of {name} ended") from error
    if isinstance(answer, str):
        raise RuntimeError(f"the peer of {name} fails:\n{answer}")
    return answer


def recipe(name: str, case: model_texts.Case, args: argparse.Namespace) -> list[str]:
    """Returns the recipe of a text with its keys, as xrun's commands take it."""
    steps, batch, device = (TINY_STEPS, TINY_BATCH, "cpu") if args.tiny else (XRUN_STEPS, BATCH, "cuda")
    own = {key: value for key, value in case.keys.items() if key.startswith("model.")}
    keys = KEYS | sized(name, case, args.tiny).keys() | own | {
        "model.definition": model_texts.TEXTS / f"{name}.model", "training.local_batch_size": batch,
        "training.steps": steps, "validation.interval": steps, "engine.device": device,
    }
    return ["dim384", *(f"{key}={value}" for key, value in keys.items())]


def call_xrun(name: str, args: argparse.Namespace, *command: object) -> None:
    """Runs a command of xrun for a text."""
    done = subprocess.run([args.xrun, *command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"xrun fails with {name}: {done.stderr[-2000:] or done.stdout[-2000:]}")


def xrun_rate(name: str, case: model_texts.Case, args: argparse.Namespace) -> float:
    """Trains a text with xrun and returns its tokens per second."""
    with tempfile.TemporaryDirectory() as folder:
        call_xrun(name, args, "run", *recipe(name, case, args), "--results", folder)
        summary = json.loads(next(Path(folder).glob("*/*/summary.json")).read_text())
    if summary["status"] != "ok" or not summary["tok_s"]:
        raise RuntimeError(f"xrun gives no speed with {name}: status {summary['status']}, tok_s {summary['tok_s']}")
    return summary["tok_s"]


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(name: str, case: model_texts.Case, channel: Connection, args: argparse.Namespace) -> dict[str, object]:
    """Measures a text in turns."""
    if args.tune:
        call_xrun(name, args, "ops", "tune", *recipe(name, case, args), "--missing", "--write", args.tune)
    progress(f"{name}: compiling")
    peers = ask(channel, name)
    for mode, about in peers.items():
        progress(f"{name}: {mode}: {about}")
    ours, theirs = [], {mode: [] for mode in args.modes}
    for turn in range(args.turns):
        ours.append(xrun_rate(name, case, args))
        for mode, rate in ask(channel, name).items():
            theirs[mode].append(rate)
        shown = ", ".join(f"{mode} {rates[-1]:,.0f}" for mode, rates in theirs.items())
        progress(f"{name}: turn {turn + 1}: xrun {ours[-1]:,.0f}, {shown} tok/s")
    fastest = max(theirs, key=lambda mode: statistics.median(theirs[mode]))
    ratio = statistics.median(ours) / statistics.median(theirs[fastest])
    return {"text": name, "xrun": ours, "peer": theirs, "fastest": fastest, "ratio": ratio, "about": peers}


def row(found: dict[str, object]) -> str:
    """Returns the Markdown row of a text, in thousand tokens per second."""

    def shown(rates: list[float]) -> str:
        return " ".join(f"{rate / 1e3:.1f}" for rate in rates)

    theirs = "; ".join(f"{mode}: {shown(rates)}" for mode, rates in found["peer"].items())
    attention = " ".join(f"`{op}`" for op in found["about"][found["fastest"]]["attention"])
    return f"| `{found['text']}` | {shown(found['xrun'])} | {theirs} | {found['ratio']:.3f} | {attention} |"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("xrun", metavar="XRUN", type=Path)
    arguments.add_argument("--text", metavar="NAME", nargs="+", help="these texts instead of all")
    arguments.add_argument("--turns", type=int, default=3)
    arguments.add_argument("--modes", metavar="MODE", nargs="+", default=["default"], help="torch.compile's")
    arguments.add_argument("--modded-nanogpt", metavar="CLONE", type=Path, help="one of KellerJordan/modded-nanogpt")
    arguments.add_argument("--tune", metavar="TABLE", type=Path, help="choose algorithms of products under load first")
    arguments.add_argument("--json", metavar="FILE", type=Path)
    arguments.add_argument("--tiny", action="store_true", help="a dry run on the CPU with small models")
    args = arguments.parse_args()
    args.xrun, args.nanochat = args.xrun.resolve(), None
    cases = {name: case for name, case in model_texts.cases(args).items() if case is not None}
    names = args.text or list(cases)
    if unknown := [name for name in names if name not in cases]:
        arguments.error(f"no peer for {', '.join(unknown)}: there are {', '.join(cases)} (two need --modded-nanogpt)")
    device = "CPU, a dry run" if args.tiny else torch.cuda.get_device_name()
    # All processes import torch at once and wait. One at a time uses the GPU.
    spawn, processes = multiprocessing.get_context("spawn"), {}
    for name in names:
        channel, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(theirs, name, args), daemon=True)
        process.start()
        theirs.close()
        processes[name] = process, channel
    print(f"{device}, torch {torch.__version__}, transformers {transformers.__version__}; thousand tokens/s\n")
    print("| text | xrun, by turn | peer, by turn | xrun / peer | attention of the peer |", flush=True)
    print("|---|---|---|--:|---|", flush=True)
    measured, failed = [], []
    for name, (process, channel) in processes.items():
        began = time.perf_counter()
        try:
            found = measure(name, cases[name], channel, args)
            measured.append(found)
            print(row(found), flush=True)
        except Exception as error:
            failed.append(name)
            print(f"| `{name}` | FAILED | | | |", flush=True)
            progress(f"{name} FAILED: {error}")
            process.terminate()
        channel.close()
        process.join(30)
        progress(f"{name}: {time.perf_counter() - began:.0f} s")
        if args.json:
            about = {"device": device, "torch": torch.__version__, "transformers": transformers.__version__}
            args.json.write_text(json.dumps(about | {"texts": measured, "failed": failed}, indent=2) + "\n")
    if measured:
        mean = statistics.geometric_mean(found["ratio"] for found in measured)
        print(f"\nGeometric mean of xrun / peer over {len(measured)} texts: {mean:.3f}")
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
