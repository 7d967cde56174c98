#!/usr/bin/env python3
"""Computes with PyTorch what xrun's parity test of objectives compares against, and writes it as safetensors.

    objective_parity.py FILE        # FILE is tests/library/parity/fixtures/objective.safetensors in the repository

The file holds rows, a head and targets, and for every objective in f64 the losses of each row and the gradients of the
mean of their sum: `NAME.losses`, `NAME.z_losses`, `NAME.smoothing`, `NAME.dx`, `NAME.dw`. Smoothed cross-entropy is
`torch.nn.functional.cross_entropy(label_smoothing=)`, z-loss the square of `torch.logsumexp` (PaLM), the cap that of
`Gemma2ForCausalLM` and `NanoChatForCausalLM`: `cap * tanh(logits / cap)`. Rows of target -100 are ignored; means are over
all rows. Needs torch; the same version gives the same bytes.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

ROWS, DIM, VOCAB = 9, 12, 19
IGNORED = (2, 7)

# Scale and cap of logits, factor of the z-loss, label smoothing. In tests/library/parity/objective.rs too.
OBJECTIVES = {
    "plain": (1.0, None, 0.0, 0.0),
    "nanochat": (1.0, 15.0, 0.0, 0.0),
    "palm": (0.25, None, 1e-4, 0.0),
    "smoothed": (1.0, None, 0.0, 0.1),
    "everything": (0.5, 5.0, 0.01, 0.25),
}


def losses(logits: torch.Tensor, targets: torch.Tensor, objective: tuple) -> dict[str, torch.Tensor]:
    """The losses of every row."""
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
    # In fp32, so that every format has the same inputs. Logits have a standard deviation of about 10.
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
