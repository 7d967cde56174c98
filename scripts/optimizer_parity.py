#!/usr/bin/env python3
"""Computes steps of SGD and Lion with PyTorch as a fixture for xrun's parity test.

    optimizer_parity.py FILE        # FILE is tests/library/parity/fixtures/optimizers.safetensors in the repository

The file has 100 steps on 24 numbers, 16 with weight decay and 8 without: the parameters and the momentum after each
step, as `sgd.params` and `sgd.momentum` of `torch.optim.SGD`, and `lion.params` and `lion.momentum`. PyTorch has no
Lion: `Lion` below is Algorithm 2 of Chen et al., "Symbolic discovery of optimization algorithms" (2023), with the
operations in the order of the authors' PyTorch code. Gradients, initial values and learning rates follow the AdamW
fixture of parity.py. Needs torch; the same version gives the same bytes.
"""

import argparse
from pathlib import Path

import torch
from parity import adamw_gradients, learning_rate, uniform
from safetensors.torch import save_file

STEPS, COUNT, DECAYED = 100, 24, 16
MOMENTUM, BETAS, WEIGHT_DECAY = 0.9, (0.9, 0.99), 0.1


class Lion(torch.optim.Optimizer):
    """Steps by the sign of the interpolated momentum, with decoupled weight decay."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                momentum = state.setdefault("momentum_buffer", torch.zeros_like(parameter))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                update = momentum * beta1 + parameter.grad * (1 - beta1)
                parameter.add_(update.sign_(), alpha=-group["lr"])
                momentum.mul_(beta2).add_(parameter.grad, alpha=1 - beta2)


def follow(make) -> dict[str, torch.Tensor]:
    """Returns the parameters and the momentum after each step."""
    matrix = uniform("adamw.matrix", DECAYED).float().requires_grad_()
    vector = (1 + uniform("adamw.vector", COUNT - DECAYED) / 4).float().requires_grad_()
    groups = [{"params": [matrix], "weight_decay": WEIGHT_DECAY}, {"params": [vector], "weight_decay": 0.0}]
    optimizer = make(groups)
    after = {"params": [], "momentum": []}
    for t, gradients in enumerate(adamw_gradients(STEPS, COUNT), start=1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(t, peak=3e-2, warmup=10, steps=STEPS, floor=0.1)
        for tensor, gradient in zip((matrix, vector), gradients.split([DECAYED, COUNT - DECAYED])):
            tensor.grad = gradient
        optimizer.step()
        after["params"].append(torch.cat([matrix, vector]).detach())
        buffers = [optimizer.state[tensor]["momentum_buffer"] for tensor in (matrix, vector)]
        after["momentum"].append(torch.cat(buffers).clone())
    return {name: torch.stack(rows) for name, rows in after.items()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("file", metavar="FILE", type=Path)
    file = arguments.parse_args().file
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    optimizers = {
        "sgd": lambda groups: torch.optim.SGD(groups, lr=0.0, momentum=MOMENTUM, foreach=False, fused=False),
        "lion": lambda groups: Lion(groups, {"lr": 0.0, "betas": BETAS}),
    }
    tensors = {f"{name}.{key}": value for name, make in optimizers.items() for key, value in follow(make).items()}
    save_file(tensors, file)
    print(f"{file}  {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
