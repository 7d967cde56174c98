#!/usr/bin/env python3
"""Computes losses and gradients of objectives with PyTorch as a fixture for xrun's parity test.

    objective_parity.py FILE        # FILE is tests/library/parity/fixtures/objective.safetensors in the repository

The file has rows, a head and targets. For every objective it has, in f64, the losses of each row (`NAME.losses`,
`NAME.z_losses`, `NAME.smoothing`) and the gradients of the mean of their sum (`NAME.dx`, `NAME.dw`).

Smoothed cross-entropy is `torch.nn.functional.cross_entropy(label_smoothing=)`. The z-loss is the square of
`torch.logsumexp` (PaLM). The cap is `cap * tanh(logits / cap)`, as in `Gemma2ForCausalLM` and `NanoChatForCausalLM`.
Rows with target -100 are ignored, but means are over all rows. Needs torch; the same version gives the same bytes.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

ROWS, DIM, VOCAB = 9, 12, 19
IGNORED = (2, 7)

# Scale and cap of logits, factor of the z-loss, label smoothing. Keep in step with
# tests/library/parity/objective.rs.
OBJECTIVES = {
    "plain": (1.0, None, 0.0, 0.0),
    "nanochat": (1.0, 15.0, 0.0, 0.0),
    "palm": (0.25, None, 1e-4, 0.0),
    "smoothed": (1.0, None, 0.0, 0.1),
    "everything": (0.5, 5.0, 0.01, 0.25),
}


def losses(logits: torch.Tensor, targets: torch.Tensor, objective: tuple) -> dict[str, torch.Tensor]:
    """Returns the losses of every row."""
    scale, cap, z_loss, smoothing = objective
    logits = scale * logits
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    plain = F.cross_entropy(logits, targets, reduction="none")
    smoothed = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    z = z_loss * torch.logsumexp(logits, dim=-1).square()
    return {"losses": plain, "z_losses": torch.where(targets == -100, 0.0, z), "smoothing": smoothed - plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    to = parser.parse_args().file
    random = torch.Generator().manual_seed(17)
    # Inputs are drawn in fp32, so that every format starts from the same ones. Logits have a standard
    # deviation of about 10.
    x = torch.randn(ROWS, DIM, generator=random)
    w = 3.0 * torch.randn(VOCAB, DIM, generator=random)
    targets = torch.randint(VOCAB, (ROWS,), generator=random)
    targets[list(IGNORED)] = -100
    out = {"x": x, "w": w, "targets": targets.clone().double()}
    for name, objective in OBJECTIVES.items():
        wide_x, wide_w = (tensor.double().requires_grad_() for tensor in (x, w))
        found = losses(wide_x @ wide_w.T, targets, objective)
        (sum(loss.sum() for loss in found.values()) / ROWS).backward()
        out |= {f"{name}.{what}": loss.detach() for what, loss in found.items()}
        out |= {f"{name}.dx": wide_x.grad, f"{name}.dw": wide_w.grad}
    save_file({name: tensor.contiguous() for name, tensor in out.items()}, to)


if __name__ == "__main__":
    main()
