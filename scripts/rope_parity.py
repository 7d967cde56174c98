#!/usr/bin/env python3
"""Rotates vectors with transformers, for each RoPE scaling and each place of the QK-norms, as a fixture for xrun's
parity test.

    rope_parity.py DIR        # DIR is tests/library/parity/fixtures in the repository

Writes one file, rope.safetensors. For each of the cases below it has, in fp32 as transformers computes it,

    CASE.frequencies       the inverse frequencies
    CASE.attention_factor  the factor on cosines and sines
    CASE.packed            a query head and a key head side by side after rotation, and after the norms if the case has
                           them; a row per position
    CASE.grads.qkv         the gradient of the vectors before rotation
    CASE.grads.wq, .wk     the gradients of the norms' weights, if they have any

Vectors, upstream gradients and weights are not stored: they follow from their names, as in `parity.py`. Needs
torch and transformers.
"""

import argparse
from pathlib import Path

import parity
import torch
from safetensors.torch import save_file
from transformers import GPTNeoXConfig, LlamaConfig, NanoChatConfig, Qwen3Config
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama
from transformers.models.nanochat import modeling_nanochat
from transformers.models.qwen3 import modeling_qwen3

POSITIONS = [0, 1, 2, 17, 64, 127]
EPS = 1e-6


def llama(dim: int, **rope):
    context = int(rope.get("factor", 1) * rope.get("original_max_position_embeddings", 2048))
    config = LlamaConfig(
        hidden_size=dim,
        num_attention_heads=1,
        head_dim=dim,
        max_position_embeddings=context,
        rope_parameters=rope,
    )
    return modeling_llama.LlamaRotaryEmbedding(config), modeling_llama.apply_rotary_pos_emb, None


def gpt_neox(dim: int, **rope):
    config = GPTNeoXConfig(hidden_size=dim, num_attention_heads=1, rope_parameters=rope)
    return modeling_gpt_neox.GPTNeoXRotaryEmbedding(config), modeling_gpt_neox.apply_rotary_pos_emb, None


def nanochat(dim: int, **rope):
    config = NanoChatConfig(hidden_size=dim, num_attention_heads=1, rope_parameters=rope)
    rotary = modeling_nanochat.NanoChatRotaryEmbedding(config)
    norms = [modeling_nanochat.NanoChatRMSNorm(EPS) for _ in range(2)]
    return rotary, modeling_nanochat.apply_rotary_pos_emb, (norms, "after")


def qwen3(dim: int, **rope):
    config = Qwen3Config(hidden_size=dim, num_attention_heads=1, head_dim=dim, rope_parameters=rope)
    rotary = modeling_qwen3.Qwen3RotaryEmbedding(config)
    norms = [modeling_qwen3.Qwen3RMSNorm(dim, EPS) for _ in range(2)]
    return rotary, modeling_qwen3.apply_rotary_pos_emb, (norms, "before")


CASES = {
    "default": (llama, 64, {"rope_type": "default", "rope_theta": 1e4}),
    "linear": (llama, 64, {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    "yarn": (
        llama,
        128,
        {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768},
    ),
    "yarn_set": (
        llama,
        64,
        {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 8.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 1.25,
        },
    ),
    "llama3": (
        llama,
        128,
        {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    ),
    "partial": (gpt_neox, 64, {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}),
    "nanochat": (nanochat, 64, {"rope_type": "default", "rope_theta": 1e4}),
    "qwen3": (qwen3, 64, {"rope_type": "default", "rope_theta": 1e6}),
}


def case(name: str, family, dim: int, rope: dict) -> dict[str, torch.Tensor]:
    rotary, apply, norm = family(dim, **rope)
    count = len(POSITIONS)
    shape = (count, 2 * dim)
    x = parity.uniform(f"rope.{name}.qkv", count * 2 * dim).float().reshape(shape).requires_grad_()
    dy = parity.uniform(f"rope.{name}.d_packed", count * 2 * dim).float().reshape(shape)
    # [batch, heads, positions, dim]
    q, k = (part[None, None] for part in x.split(dim, -1))
    cos, sin = rotary(q, torch.tensor([POSITIONS]))
    found = {
        "frequencies": rotary.inv_freq.float(),
        "attention_factor": torch.tensor([rotary.attention_scaling], dtype=torch.float64),
    }
    norms, place = norm or ([], None)
    weights = {part: norm.weight for part, norm in zip(("wq", "wk"), norms) if hasattr(norm, "weight")}
    with torch.no_grad():
        for part, weight in weights.items():
            weight.copy_(1 + parity.uniform(f"rope.{name}.{part}", dim) / 4)
    if place == "before":
        q, k = (norm(part) for norm, part in zip(norms, (q, k)))
    q, k = apply(q, k, cos, sin)
    if place == "after":
        q, k = (norm(part) for norm, part in zip(norms, (q, k)))
    packed = torch.cat((q, k), -1)[0, 0]
    packed.backward(dy)
    found |= {"packed": packed.detach(), "grads.qkv": x.grad}
    found |= {f"grads.{part}": weight.grad for part, weight in weights.items()}
    return {f"{name}.{part}": value.contiguous() for part, value in found.items()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", metavar="DIR", type=Path)
    folder = arguments.parse_args().folder
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, (family, dim, rope) in CASES.items():
        found |= case(name, family, dim, dict(rope))
    path = folder / "rope.safetensors"
    save_file(found, path)
    print(f"{path}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
