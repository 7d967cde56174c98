#!/usr/bin/env python3
"""Computes activations and norms with PyTorch in fp32 and writes them as a fixture for xrun's parity test.

    layer_parity.py DIR        # DIR is tests/library/parity/fixtures in the repository

For each layer, `layers.safetensors` has the output `NAME.y` and, for an upstream gradient, the gradients of the inputs
(`NAME.dx`, `NAME.dw`, `NAME.db`). Inputs are not stored: they follow from their names, as in `parity.py`.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from parity import uniform
from safetensors.torch import save_file

ROWS, WIDTH, EPS = 6, 40, 1e-5

FUNCTIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu2": lambda x: F.relu(x).square(),
}
GATES = {
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "reglu": F.relu,
}


def numbers(name: str, *shape: int) -> torch.Tensor:
    """Returns multiples of 2^-21 in [-1, 1) that follow from the name."""
    count = torch.Size(shape).numel()
    return uniform(f"layers.{name}", count).reshape(shape).float()


def rows(*shape: int) -> torch.Tensor:
    """Returns numbers in [-4, 4), the first of them 0."""
    x = 4 * numbers("x", *shape)
    x.view(-1)[0] = 0
    return x.requires_grad_()


def results(name: str, y: torch.Tensor, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the output and the gradients of the inputs as named tensors."""
    gradients = torch.autograd.grad(y, list(inputs.values()), numbers("dy", *y.shape))
    found = {f"{name}.y": y} | {f"{name}.d{key}": g for key, g in zip(inputs, gradients)}
    return {key: value.detach().contiguous() for key, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    out = {}
    for name, function in FUNCTIONS.items():
        x = rows(ROWS, WIDTH)
        out |= results(name, function(x), {"x": x})
    for name, function in GATES.items():
        x = rows(ROWS, 2, WIDTH)
        out |= results(name, function(x[:, 0]) * x[:, 1], {"x": x})
    for affine in ("", "w", "wb"):
        x, w, b = rows(ROWS, WIDTH), 1 + numbers("w", WIDTH) / 4, numbers("b", WIDTH) / 2
        vectors = {key: value.requires_grad_() for key, value in (("w", w), ("b", b)) if key in affine}
        suffix = f".{affine}" if affine else ""
        y = F.layer_norm(x, (WIDTH,), vectors.get("w"), vectors.get("b"), EPS)
        out |= results(f"layer_norm{suffix}", y, {"x": x} | vectors)
        if affine != "wb":
            y = F.rms_norm(x, (WIDTH,), vectors.get("w"), EPS)
            out |= results(f"rms_norm{suffix}", y, {"x": x} | vectors)
    save_file(out, parser.parse_args().dir / "layers.safetensors")


if __name__ == "__main__":
    main()
