#!/usr/bin/env python3
"""What products of 8-bit floats cost PyTorch in loss: pairs of trainings from the same weights on the same windows.

    xrun data --corpus text.txt --tokenizer gpt2 --out shards
    torch_fp8_loss.py --model dim384 --seq 256 --batch 64 --steps 1000 --train shards/train_000000.bin \\
        --held-out shards/val_000000.bin --seeds 8

The model, its optimizer and its 8-bit products are those of torch_peer.py. Rates rise linearly over a tenth of the
steps, then fall along half a cosine to a tenth. Both models of a pair are evaluated in bf16. Prints a line of JSON per
pair: the held-out losses in nats per token, and the seconds that the trainings took.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch_peer
from torch import Tensor, nn

HEADER = 256  # Numbers of 4 bytes at the beginning of a shard, the third of which counts its tokens.
MAGIC = 20_240_520
HELD_OUT_BATCHES = 16


def windows(path: Path, seq: int, device: str) -> Tensor:
    """Returns the windows of a shard of llm.c, each with the target of its last token."""
    data = path.read_bytes()
    header = np.frombuffer(data, "<i4", HEADER)
    if header[0] != MAGIC:
        raise SystemExit(f"{path}: not a token shard of llm.c")
    tokens = torch.from_numpy(np.frombuffer(data, "<u2", header[2], 4 * HEADER).astype(np.int32))
    return tokens.to(device).unfold(0, seq + 1, seq)


def rate(step: int, steps: int, peak: float) -> float:
    """Returns the learning rate of a step, counted from 1."""
    warm = steps // 10
    if step <= warm:
        return peak * step / warm
    return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm))))


class Arm:
    """A model that is trained anew for every seed, so that it is compiled once."""

    def __init__(self, args: argparse.Namespace, shape: torch_peer.Shape, fp8: str | None):
        self.args = args
        self.model = torch_peer.Model(shape, args.seq, recompute=False).to(args.device)
        if fp8:
            torch_peer.convert(self.model.blocks, fp8)
        self.network = torch.compile(self.model) if args.device == "cuda" else self.model

    def loss(self, batch: Tensor) -> Tensor:
        """Returns the mean loss of a batch of windows."""
        batch = batch.long()
        with torch.autocast(self.args.device, torch.bfloat16):
            return self.network(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())

    def train(self, weights: dict[str, Tensor], text: Tensor, seed: int) -> float:
        """Trains from the given weights; returns the seconds that it took."""
        args = self.args
        self.model.load_state_dict(weights)
        optimizer = torch_peer.adamw(self.model, args.lr)
        order = torch.randperm(len(text), generator=torch.Generator().manual_seed(seed))
        began = time.perf_counter()
        for step in range(args.steps):
            for group in optimizer.param_groups:
                group["lr"] = rate(step + 1, args.steps, args.lr)
            chosen = torch.arange(step * args.batch, (step + 1) * args.batch) % len(order)
            self.loss(text[order[chosen]]).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if args.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began


def main() -> None:
    """Trains the pairs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="dim384", help="a preset of torch_peer.py")
    parser.add_argument("--seq", type=int, default=256, help="tokens per sequence")
    parser.add_argument("--batch", type=int, default=64, help="sequences per step")
    parser.add_argument("--steps", type=int, default=1000, help="optimizer steps of a training")
    parser.add_argument("--lr", type=float, default=6e-4, help="the largest learning rate")
    parser.add_argument("--fp8", default="tensorwise", choices=["tensorwise", "rowwise", "torchao"])
    parser.add_argument("--train", type=Path, required=True, help="a shard to train on")
    parser.add_argument("--held-out", type=Path, required=True, help="a shard to evaluate on")
    parser.add_argument("--seeds", type=int, default=8, help="number of pairs")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    args = parser.parse_args()
    shape = torch_peer.PRESETS[args.model].padded()
    text, held_out = (windows(path, args.seq, args.device) for path in (args.train, args.held_out))
    plain = Arm(args, shape, None)
    arms = {"bf16": plain, "fp8": Arm(args, shape, args.fp8)}
    for seed in range(args.seeds):
        torch.manual_seed(seed)
        fresh = torch_peer.Model(shape, args.seq, recompute=False).state_dict()
        fresh = {name: tensor.to(args.device) for name, tensor in fresh.items()}
        row: dict[str, float] = {"seed": seed}
        for name, arm in arms.items():
            row[f"{name}_s"] = round(arm.train(fresh, text, seed), 2)
            plain.model.load_state_dict(arm.model.state_dict())
            with torch.no_grad():
                chosen = held_out[: HELD_OUT_BATCHES * args.batch].split(args.batch)
                losses = [plain.loss(batch).item() for batch in chosen if len(batch) == args.batch]
            row[name] = sum(losses) / len(losses)
        row["difference"] = row["fp8"] - row["bf16"]
        print(json.dumps(row), flush=True)


main()
