#!/usr/bin/env python3
"""Compares the tensors of a step, as `xrun inspect RECIPE --to FILE` writes them, with PyTorch's from equal weights.

    torch_parity.py FILE --dtype bf16 [--device cuda]

PyTorch computes the step in f64, which is the truth, and in fp32 (for bf16, under autocast). `docs/measuring.md` gives
the allowed distances of xrun's loss, logits and gradients from the truth: a tensor may be twice as far away as PyTorch's
own in the same precision. Prints a line of JSON per tensor. Needs only torch; the model follows from the shapes.
"""

import argparse
import json
import math
import struct
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

THETA, EPS = 10_000.0, 1e-6
DTYPES = {"F32": torch.float32, "U32": torch.int32}
# The largest relative distance of the loss from the truth, and the distance below which a tensor always
# passes.
LOSS = {"fp32": 1e-6, "tf32": 2e-4, "bf16": 2e-4}
NEGLIGIBLE = {"fp32": 2e-6, "tf32": 1e-4, "bf16": 1e-3}


def read(path: Path) -> dict[str, Tensor]:
    """Reads the tensors of a safetensors file."""
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, about in header.items():
        count = math.prod(about["shape"])
        start = 8 + length + about["data_offsets"][0]
        flat = torch.frombuffer(data, dtype=DTYPES[about["dtype"]], count=count, offset=start)
        tensors[name] = flat.reshape(about["shape"])
    return tensors


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Applies RoPE to [batch, head, position, dim], in fp32 if `x` is narrower."""
    wide = x.float() if x.dtype == torch.bfloat16 else x
    half = x.shape[-1] // 2
    frequencies = THETA ** (-torch.arange(half, dtype=wide.dtype, device=x.device) / half)
    angles = positions[:, None, :, None].to(wide.dtype) * frequencies
    left, right = wide.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)


def forward(w: dict[str, Tensor], tokens: Tensor, positions: Tensor) -> Tensor:
    """Computes logits [batch, position, vocabulary]. The model's sizes follow from its weights."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, w[name].shape, w[name], EPS)

    def norm_of_heads(x: Tensor, name: str) -> Tensor:
        return norm(x, name).to(x.dtype) if name in w else x

    x = F.embedding(tokens, w["embedding"])
    if torch.is_autocast_enabled(x.device.type):
        x = x.bfloat16()
    layers = sum(name.endswith(".qkv") for name in w)
    for layer in range(layers):
        at = f"blocks.{layer}."
        q_width = w[at + "out"].shape[1]
        kv_width = (w[at + "qkv"].shape[0] - q_width) // 2
        head_dim = w[at + "q_norm"].shape[0]
        packed = F.linear(norm(x, at + "attention_norm"), w[at + "qkv"])
        parts = packed.split([q_width, kv_width, kv_width], -1)
        q, k, v = (part.unflatten(-1, (-1, head_dim)).transpose(1, 2) for part in parts)
        q, k = norm_of_heads(q, at + "q_norm"), norm_of_heads(k, at + "k_norm")
        q, k = rotate(q, positions), rotate(k, positions)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q_width != kv_width)
        x = x + F.linear(y.transpose(1, 2).flatten(2), w[at + "out"])
        gate, up = F.linear(norm(x, at + "ffn_norm"), w[at + "gate_up"].flatten(0, 1)).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, w[at + "down"])
    return F.linear(norm(x, "final_norm"), w.get("head", w["embedding"]))


def step(tensors: dict[str, Tensor], dtype: torch.dtype, device: str, autocast: bool = False) -> dict[str, Tensor]:
    """Computes loss, logits and gradients in `dtype`; returns them in f64 on the CPU."""
    weights = {
        name.removeprefix("params."): value.to(device, dtype).requires_grad_()
        for name, value in tensors.items()
        if name.startswith("params.")
    }
    tokens, targets, positions = (
        tensors[f"batch.{name}"].to(device, torch.int64) for name in ("tokens", "targets", "positions")
    )
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        logits = forward(weights, tokens, positions)
        wide = logits.float() if autocast else logits
        loss = F.cross_entropy(wide.flatten(0, 1), targets.flatten())
    loss.backward()
    rows = tensors["logits"].shape[0]
    found = {"loss": loss.detach()[None], "logits": logits.detach().flatten(0, 1)[:rows]}
    found |= {f"grads.{name}": value.grad for name, value in weights.items()}
    return {name: value.double().cpu() for name, value in found.items()}


def relative(x: Tensor, to: Tensor) -> float:
    """Returns ‖x - to‖ / ‖to‖."""
    return ((x.double() - to).norm() / to.norm()).item()


def main() -> None:
    """Compares all tensors and exits with 1 if one is too far from the truth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the file that `xrun inspect` wrote")
    parser.add_argument("--dtype", required=True, choices=list(LOSS), help="the precision in which xrun computed")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    args = parser.parse_args()
    tensors = read(args.file)
    truth = step(tensors, torch.float64, args.device)
    torch.backends.cuda.matmul.allow_tf32 = args.dtype == "tf32"
    peer = step(tensors, torch.float32, args.device, autocast=args.dtype == "bf16")
    bad = False
    for name, exact in truth.items():
        ours, theirs = relative(tensors[name], exact), relative(peer[name], exact)
        bound = max(LOSS[args.dtype] if name == "loss" else NEGLIGIBLE[args.dtype], 2 * theirs)
        holds = ours <= bound
        bad |= not holds
        print(json.dumps({"tensor": name, "ours": ours, "theirs": theirs, "bound": bound, "holds": holds}))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
