#!/usr/bin/env python3
"""Trains a recipe with PyTorch from xrun's initial weights on xrun's tokens, to compare the loss curves.

    xrun compare RECIPE --tolerance 0.001 --before-cmd "python3 scripts/torch_curve.py RECIPE"

`xrun inspect` writes the initial weights, and the batches of all steps as one large batch, so this is for recipes of few
steps. The recipe must have warm-up and cosine decay, one rank, no dropout and no gradient accumulation. Prints a line of
JSON per step: the loss and the speed; the gradient norm, and the parameter with the largest gradient norm; the RMS of
the residual stream before the last norm at the median position, and the RMS of its mean over all positions. Needs only
torch.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import torch
import torch.nn.functional as F
import torch_parity
from torch import Tensor

# Recipe sections that determine how the model learns.
LEARNING = ("training", "optimizer", "lr_scheduler")


def call(xrun: str, *arguments: str) -> str:
    """Returns what xrun prints, or exits with its code. xrun's errors go to the terminal."""
    done = subprocess.run([xrun, *arguments], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def resolved(xrun: str, recipe: list[str]) -> dict[str, object]:
    """Returns the resolved values of the keys in the sections `LEARNING`."""
    keys = json.loads(call(xrun, "plan", *recipe, "--explain", "--json"))
    known = [key for key in keys if key["key"].split(".")[0] in LEARNING and key["value"] is not None]
    return {key["key"]: tomllib.loads(f"x = {key['value']}")["x"] for key in known}


def learning_rate(keys: dict[str, object], step: int) -> float:
    """Rises linearly to the peak, then falls along half a cosine to a fraction of it; steps count from 1."""
    warm, last, low = keys["lr_scheduler.warmup_steps"], keys["training.steps"], keys["lr_scheduler.min_lr_ratio"]
    if step <= warm:
        return keys["optimizer.lr"] * step / warm
    fallen = 0.5 * (1 + math.cos(math.pi * (step - warm) / (last - warm)))
    return keys["optimizer.lr"] * (low + (1 - low) * fallen)


def logits_and_stream(weights: dict[str, Tensor], tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the logits and the input of the last norm."""
    given = []
    norm = F.rms_norm

    def seen(x: Tensor, *more: object) -> Tensor:
        given[:] = [x.detach()]
        return norm(x, *more)

    F.rms_norm = seen
    try:
        return torch_parity.forward(weights, tokens, positions), given[0]
    finally:
        F.rms_norm = norm


def rms(x: Tensor) -> Tensor:
    """Returns the root mean square over the width."""
    return x.float().square().mean(-1).sqrt()


def main() -> None:
    """Trains and prints a line per step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="+", help="the recipe, then KEY=VALUE settings")
    parser.add_argument("--xrun", default="target/release/xrun")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()
    recipe = [*args.recipe, f"engine.device={args.device}"]
    keys = resolved(args.xrun, recipe)
    batch, steps = keys["training.local_batch_size"], keys["training.steps"]
    recipe = [key for key in recipe if not key.startswith("training.local_batch_size=")]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "first.safetensors"
        call(args.xrun, "inspect", *recipe, f"training.local_batch_size={batch * steps}", "--to", str(file))
        tensors = torch_parity.read(file)
    weights = {
        name.removeprefix("params."): value.to(args.device).requires_grad_()
        for name, value in tensors.items()
        if name.startswith("params.")
    }
    groups = [
        {"params": [w for w in weights.values() if (w.dim() > 1) == matrices], "weight_decay": decay}
        for matrices, decay in ((True, keys["optimizer.weight_decay"]), (False, 0.0))
    ]
    adamw = torch.optim.AdamW(groups, betas=tuple(keys["optimizer.betas"]), eps=keys["optimizer.eps"])
    for step in range(1, steps + 1):
        began = time.perf_counter()
        window = slice(batch * (step - 1), batch * step)
        tokens, targets, positions = (
            tensors[f"batch.{name}"][window].to(args.device, torch.int64) for name in ("tokens", "targets", "positions")
        )
        logits, stream = logits_and_stream(weights, tokens, positions)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        adamw.zero_grad()
        loss.backward()
        # In fp64, because sums of millions of squares lose digits in fp32.
        norms = {name: weight.grad.double().norm().item() for name, weight in weights.items()}
        torch.nn.utils.clip_grad_norm_(weights.values(), keys["training.max_norm"])
        for group in adamw.param_groups:
            group["lr"] = learning_rate(keys, step)
        adamw.step()
        row = {
            "step": step,
            "loss": loss.item(),
            "tok_s": tokens.numel() / (time.perf_counter() - began),
            "grad_norm": math.hypot(*norms.values()),
            "longest": max(norms, key=norms.__getitem__),
            "stream_rms": rms(stream).median().item(),
            "mean_rms": rms(stream.mean((0, 1))).item(),
        }
        print(
            json.dumps(
                {key: float(f"{value:.7g}") if isinstance(value, float) else value for key, value in row.items()}
            )
        )


if __name__ == "__main__":
    main()
