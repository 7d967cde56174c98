#!/usr/bin/env python3
"""Computes steps of torch.optim.Muon, and the same steps in f64, as a fixture for xrun's parity test.

    muon_parity.py DIR        # DIR is tests/library/parity/fixtures in the repository

For each case, `muon.safetensors` has the state of torch.optim.Muon after each step in fp32 (`CASE.params` and
`CASE.momentum`, a row per step). `CASE.truth` has the parameters after the same step from the same state, computed
entirely in f64, because PyTorch's Newton-Schulz iterates in bf16. Matrices are concatenated in the order in which xrun
stacks them: queries, keys, values, gate, up, down. Initial parameters and gradients are not stored: they follow from
their names, as in `parity.py`.
"""

import argparse
import math
from pathlib import Path

import torch
from parity import uniform
from safetensors.torch import save_file

STEPS, LR, WEIGHT_DECAY = 3, 0.02, 0.1
SHAPES = [(24, 16), (8, 16), (8, 16), (20, 16), (20, 16), (16, 20)]
CASES = {
    "original": {"adjust_lr_fn": "original", "momentum": 0.95, "nesterov": True, "ns_steps": 5},
    "match_rms_adamw": {"adjust_lr_fn": "match_rms_adamw", "momentum": 0.9, "nesterov": False, "ns_steps": 6},
}
COEFFICIENTS, EPS = (3.4445, -4.7750, 2.0315), 1e-7


def numbers(name: str) -> list[torch.Tensor]:
    """Returns multiples of 2^-21 in [-1, 1), in the shapes of the matrices."""
    sizes = [math.prod(shape) for shape in SHAPES]
    parts = uniform(f"muon.{name}", sum(sizes)).float().split(sizes)
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES)]


def in_f64(param, momentum, gradient, case) -> torch.Tensor:
    """Returns a parameter after one step that is computed in f64."""
    p, m, g = param.double(), momentum.double(), gradient.double()
    m = case["momentum"] * m + (1 - case["momentum"]) * g
    x = case["momentum"] * m + (1 - case["momentum"]) * g if case["nesterov"] else m
    rows, columns = x.shape
    x = x.T if rows > columns else x
    x = x / max(x.norm().item(), EPS)
    a, b, c = COEFFICIENTS
    for _ in range(case["ns_steps"]):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = x.T if rows > columns else x
    ratio = {
        "original": math.sqrt(max(1, rows / columns)),
        "match_rms_adamw": 0.2 * math.sqrt(max(rows, columns)),
    }[case["adjust_lr_fn"]]
    return p * (1 - LR * WEIGHT_DECAY) - LR * ratio * x


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    folder, out = parser.parse_args().dir, {}
    for name, case in CASES.items():
        params = [torch.nn.Parameter(value / 8) for value in numbers("params")]
        momenta = [torch.zeros_like(p) for p in params]
        optimizer = torch.optim.Muon(params, lr=LR, weight_decay=WEIGHT_DECAY, **case)
        rows = {"params": [], "momentum": [], "truth": []}
        for step in range(1, STEPS + 1):
            gradients = numbers(f"gradients.{step}")
            rows["truth"].append(flat(in_f64(*of, case) for of in zip(params, momenta, gradients)))
            for p, gradient in zip(params, gradients):
                p.grad = gradient
            optimizer.step()
            momenta = [optimizer.state[p]["momentum_buffer"].clone() for p in params]
            rows["params"].append(flat(params))
            rows["momentum"].append(flat(momenta))
        for key, values in rows.items():
            out[f"{name}.{key}"] = torch.stack(values)
        error = (out[f"{name}.params"].double() - out[f"{name}.truth"]).norm(dim=1)
        print(name, "off by", error.tolist(), "of", out[f"{name}.truth"].norm(dim=1).tolist())
    save_file(out, folder / "muon.safetensors")


if __name__ == "__main__":
    main()
