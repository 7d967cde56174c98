#!/usr/bin/env python3
"""Computes steps of torch.optim.Muon and of NorMuon, and the same steps in f64, as a fixture for xrun's parity test.

    muon_parity.py DIR --normuon CLONE      # DIR is tests/library/parity/fixtures in the repository

CLONE is a git clone of https://github.com/zichongli5/NorMuon, of which commit d45c9a42 is read. Polar Express is
written out here as the paper prints it (arXiv 2505.16932), since PyTorch has none.

For each case, `muon.safetensors` has the state of torch.optim.Muon after each step in fp32 (`CASE.params` and
`CASE.momentum`, a row per step), and of NorMuon also the averages of neurons (`CASE.neurons`). `CASE.truth` has the
parameters after the same step from the same state, computed entirely in f64, because the peers iterate in bf16, and
`CASE.neurons_truth` the averages. Matrices are concatenated in the order in which xrun stacks them: queries, keys,
values, gate, up, down. Initial parameters and gradients are not stored: they follow from their names, as in `parity.py`.
"""

import argparse
import math
import subprocess
import types
from pathlib import Path

import torch
from parity import uniform
from safetensors.torch import save_file

STEPS, LR, WEIGHT_DECAY = 3, 0.02, 0.1
SHAPES = [(24, 16), (8, 16), (8, 16), (20, 16), (20, 16), (16, 20)]
CASES = {
    "original": {"adjust_lr_fn": "original", "momentum": 0.95, "nesterov": True, "ns_steps": 5},
    "match_rms_adamw": {"adjust_lr_fn": "match_rms_adamw", "momentum": 0.9, "nesterov": False, "ns_steps": 6},
    "normuon": {"adjust_lr_fn": "original", "momentum": 0.95, "nesterov": True, "ns_steps": 5, "beta2": 0.9},
    "polar_express": {"adjust_lr_fn": "original", "momentum": 0.95, "nesterov": True, "ns_steps": 5, "polar": True},
}
COEFFICIENTS, EPS = (3.4445, -4.7750, 2.0315), 1e-7
SAFETY = 1.01
POLAR_EXPRESS = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
]


def polynomials(case) -> tuple[list[tuple[float, float, float]], float]:
    """Returns the coefficients of each iteration, and the factor by which the norm is enlarged."""
    if not case.get("polar"):
        return [COEFFICIENTS] * case["ns_steps"], 1.0
    safe = [(a / SAFETY, b / SAFETY**3, c / SAFETY**5) for a, b, c in POLAR_EXPRESS[: case["ns_steps"] - 1]]
    return safe + [POLAR_EXPRESS[case["ns_steps"] - 1]], SAFETY


def orthogonal(x: torch.Tensor, case) -> torch.Tensor:
    """Returns a direction after all iterations, in the format of x."""
    rows, columns = x.shape
    x = x.T if rows > columns else x
    coefficients, safety = polynomials(case)
    x = x / (x.norm().clamp_min(EPS) * safety)
    for a, b, c in coefficients:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if rows > columns else x


def ratio(shape, case) -> float:
    """Returns the factor of the learning rate for a shape."""
    rows, columns = shape
    if case["adjust_lr_fn"] == "original":
        return math.sqrt(max(1, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))


def numbers(name: str) -> list[torch.Tensor]:
    """Returns multiples of 2^-21 in [-1, 1), in the shapes of the matrices."""
    sizes = [math.prod(shape) for shape in SHAPES]
    parts = uniform(f"muon.{name}", sum(sizes)).float().split(sizes)
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES)]


def in_f64(param, momentum, neurons, gradient, case) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a parameter and the averages of its rows' mean squares after one step that is computed in f64."""
    p, m, g = param.double(), momentum.double(), gradient.double()
    m = case["momentum"] * m + (1 - case["momentum"]) * g
    x = case["momentum"] * m + (1 - case["momentum"]) * g if case["nesterov"] else m
    x = orthogonal(x, case)
    average = neurons.double()
    if "beta2" in case:
        average = case["beta2"] * average + (1 - case["beta2"]) * (x * x).mean(dim=1, keepdim=True)
        divided = x / (average.sqrt() + 1e-10)
        x = divided * (x.norm() / divided.norm())
    return p * (1 - LR * WEIGHT_DECAY) - LR * ratio(x.shape, case) * x, average


def own_step(param, momentum, neurons, gradient, case, normuon) -> None:
    """Takes one step of NorMuon by its authors' code, or of Polar Express in bf16."""
    if "beta2" in case:
        update = normuon.normuon_update(gradient.clone(), momentum, neurons, beta=case["momentum"], beta2=case["beta2"],
                                        ns_steps=case["ns_steps"], nesterov=case["nesterov"])
    else:
        momentum.lerp_(gradient, 1 - case["momentum"])
        update = orthogonal(gradient.lerp(momentum, case["momentum"]).bfloat16(), case) * ratio(gradient.shape, case)
    param.mul_(1 - LR * WEIGHT_DECAY)
    param.add_(update, alpha=-LR)


def module(clone: Path) -> types.ModuleType:
    """Returns the module normuon.py of a commit of the clone."""
    source = subprocess.run(["git", "-C", clone, "show", "d45c9a42:normuon.py"], stdout=subprocess.PIPE, check=True)
    found = types.ModuleType("normuon")
    exec(compile(source.stdout, "normuon.py", "exec"), found.__dict__)
    return found


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--normuon", type=Path, required=True, metavar="CLONE")
    options = parser.parse_args()
    folder, normuon, out = options.dir, module(options.normuon), {}
    for name, case in CASES.items():
        params = [torch.nn.Parameter(value / 8) for value in numbers("params")]
        momenta = [torch.zeros_like(p) for p in params]
        # The authors' code averages in the format of the iterations.
        neurons = [torch.zeros(len(p), 1, dtype=torch.bfloat16) for p in params]
        is_own = "beta2" in case or "polar" in case
        optimizer = None if is_own else torch.optim.Muon(params, lr=LR, weight_decay=WEIGHT_DECAY, **case)
        rows = {"params": [], "momentum": [], "truth": []} | ({"neurons": [], "neurons_truth": []} if "beta2" in case else {})
        for step in range(1, STEPS + 1):
            gradients = numbers(f"gradients.{step}")
            truth = [in_f64(*of, case) for of in zip(params, momenta, neurons, gradients)]
            rows["truth"].append(flat(param for param, _ in truth))
            if "beta2" in case:
                rows["neurons_truth"].append(flat(average for _, average in truth))
            if is_own:
                with torch.no_grad():
                    for tensors in zip(params, momenta, neurons, gradients):
                        own_step(*tensors, case, normuon)
            else:
                for p, gradient in zip(params, gradients):
                    p.grad = gradient
                optimizer.step()
                momenta = [optimizer.state[p]["momentum_buffer"].clone() for p in params]
            rows["params"].append(flat(params))
            rows["momentum"].append(flat(momenta))
            if "beta2" in case:
                rows["neurons"].append(flat(neurons).float())
        for key, values in rows.items():
            out[f"{name}.{key}"] = torch.stack(values)
        error = (out[f"{name}.params"].double() - out[f"{name}.truth"]).norm(dim=1)
        print(name, "off by", error.tolist(), "of", out[f"{name}.truth"].norm(dim=1).tolist())
    save_file(out, folder / "muon.safetensors")


if __name__ == "__main__":
    main()
