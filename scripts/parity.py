#!/usr/bin/env python3
"""Computes the fixtures of xrun's parity test with PyTorch and writes them as safetensors.

    parity.py DIR        # DIR is tests/library/parity/fixtures in the repository

It writes four files. The same machine and versions give the same bytes.

    model.safetensors    loss, logits and every gradient of one batch in fp32; the f64 truth of each, as fp32 plus a
                         bf16 rest (`fp32.X + rest.X`); PyTorch's own error, in fp32 and under bf16 autocast
    attention.safetensors
                         loss, logits and some gradients of the batch in fp32, with capped scores and a sliding window
    training.safetensors three optimizer steps in fp32: loss, gradient norm, learning rate, parameters at the end
    adamw.safetensors    1,000 steps of torch.optim.AdamW on 24 numbers: parameters and moments after each

Weights, tokens and AdamW's gradients are not stored. Element `i` of the tensor `name` is output `i` of SplitMix64
(Steele, Lea and Flood, 2014) seeded with the FNV-1a hash of the name; `tests/library/parity/formula.rs` does the same.

The model below has xrun's names and layouts. Before the script writes anything, it checks that HuggingFace's
Qwen3ForCausalLM gives the same loss, logits and gradients from the same weights. Needs torch and transformers.
"""

import argparse
import copy
import math
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.masking_utils import sliding_window_overlay
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

# Attention is wider than the residual stream; FFN and vocabulary are not multiples of xrun's padding.
DIM, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 64, 2, 4, 2, 32, 96, 131
BATCH, SEQ = 3, 33
THETA, EPS = 10_000.0, 1e-6
# For attention.safetensors: every second layer attends globally.
WINDOW, GLOBAL_INTERVAL, SCORE_CAP = 7, 2, 1.5

Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
SHAPES = {"embedding": (VOCAB, DIM), "final_norm": (DIM,), "head": (VOCAB, DIM)}
for layer in range(LAYERS):
    block = {
        "attention_norm": (DIM,),
        "qkv": (Q + 2 * KV, DIM),
        "q_norm": (HEAD_DIM,),
        "k_norm": (HEAD_DIM,),
        "out": (DIM, Q),
        "ffn_norm": (DIM,),
        "gate_up": (2, FFN, DIM),
        "down": (DIM, FFN),
    }
    SHAPES |= {f"blocks.{layer}.{name}": shape for name, shape in block.items()}

BETAS, ADAM_EPS, WEIGHT_DECAY = (0.9, 0.95), 1e-8, 0.1


def bits(name: str, count: int) -> np.ndarray:
    """Returns the first `count` outputs of SplitMix64 seeded with the FNV-1a hash of the name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(name: str, count: int) -> torch.Tensor:
    """Returns multiples of 2^-21 in [-1, 1) in f64; fp32 holds them exactly."""
    return torch.from_numpy((bits(name, count) >> np.uint64(42)).astype(np.float64)) / 2**21 - 1


def weights(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Returns matrices in [-1/8, 1/8) and norm weights in [3/4, 5/4)."""
    made = {}
    for name, shape in SHAPES.items():
        u = uniform(name, math.prod(shape)).reshape(shape)
        made[name] = (u / 8 if len(shape) > 1 else 1 + u / 4).to(dtype).requires_grad_()
    return made


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the tokens and targets (tokens shifted by one) of a step; steps count from 1."""
    rows = (bits(f"tokens.{step}", BATCH * (SEQ + 1)) >> np.uint64(32)) * np.uint64(VOCAB) >> np.uint64(32)
    rows = torch.from_numpy(rows.astype(np.int64)).reshape(BATCH, SEQ + 1)
    return rows[:, :-1], rows[:, 1:]


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Applies RoPE in the rotate-half layout, in fp32 if `x` is narrower."""
    wide = x.float() if x.dtype == torch.bfloat16 else x
    frequencies = THETA ** (-torch.arange(0, HEAD_DIM, 2, dtype=wide.dtype) / HEAD_DIM)
    angles = torch.arange(x.shape[-2], dtype=wide.dtype)[:, None] * frequencies
    a, b = wide.chunk(2, -1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1).to(x.dtype)


def causal(_layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def capped_in_window(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Computes attention with the soft-capped scores and the sliding window of Gemma 2 in transformers."""
    t = torch.arange(SEQ)
    seen = t[None] <= t[:, None]
    if (layer + 1) % GLOBAL_INTERVAL != 0:
        seen &= sliding_window_overlay(WINDOW)(0, 0, t[:, None], t[None])
    mask = torch.zeros(SEQ, SEQ).masked_fill(~seen, -math.inf)
    module = SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, training=False)
    y, _ = eager_attention_forward(module, q, k, v, mask, scaling=HEAD_DIM**-0.5, softcap=SCORE_CAP)
    return y.transpose(1, 2)


def forward(w: dict[str, torch.Tensor], tokens: torch.Tensor, attention=causal) -> torch.Tensor:
    """Computes logits [batch, seq, vocab]."""

    def norm(x, name):
        return F.rms_norm(x, w[name].shape, w[name], EPS)

    x = F.embedding(tokens, w["embedding"])
    if torch.is_autocast_enabled("cpu"):
        x = x.bfloat16()
    for layer in range(LAYERS):
        at = f"blocks.{layer}."
        q, k, v = F.linear(norm(x, at + "attention_norm"), w[at + "qkv"]).split([Q, KV, KV], -1)
        q, k, v = (t.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for t in (q, k, v))
        q, k = (rotate(norm(t, at + name).to(v.dtype)) for t, name in ((q, "q_norm"), (k, "k_norm")))
        y = attention(layer, q, k, v)
        x = x + F.linear(y.transpose(1, 2).flatten(2), w[at + "out"])
        gate, up = F.linear(norm(x, at + "ffn_norm"), w[at + "gate_up"].flatten(0, 1)).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, w[at + "down"])
    return F.linear(norm(x, "final_norm"), w["head"])


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    wide = logits.float() if logits.dtype == torch.bfloat16 else logits
    return F.cross_entropy(wide.flatten(0, 1), targets.flatten())


def run(dtype: torch.dtype, autocast: bool = False, attention=causal) -> dict[str, torch.Tensor]:
    """Computes loss, logits and gradients of the first batch."""
    w = weights(dtype)
    tokens, targets = batch(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = forward(w, tokens, attention)
        loss = cross_entropy(logits, targets)
    loss.backward()
    found = {"loss": loss.detach()[None], "logits": logits.detach()}
    return found | {f"grads.{name}": value.grad for name, value in w.items()}


def run_huggingface() -> dict[str, torch.Tensor]:
    """Computes what `run` does in fp32, but with transformers."""
    torch.set_default_dtype(torch.float32)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=DIM,
            intermediate_size=FFN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            rope_parameters={"rope_type": "default", "rope_theta": THETA},
            rms_norm_eps=EPS,
            tie_word_embeddings=False,
            attn_implementation="eager",
        )
    )
    parts = {"embedding": ["model.embed_tokens"], "final_norm": ["model.norm"], "head": ["lm_head"]}
    for layer in range(LAYERS):
        names = {
            "attention_norm": ["input_layernorm"],
            "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            "q_norm": ["self_attn.q_norm"],
            "k_norm": ["self_attn.k_norm"],
            "out": ["self_attn.o_proj"],
            "ffn_norm": ["post_attention_layernorm"],
            "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
            "down": ["mlp.down_proj"],
        }
        for name, modules in names.items():
            parts[f"blocks.{layer}.{name}"] = [f"model.layers.{layer}.{module}" for module in modules]
    theirs = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in weights(torch.float32).items():
            into = [theirs.pop(f"{module}.weight") for module in parts[name]]
            value = value.flatten(0, 1) if value.dim() == 3 else value
            for parameter, rows in zip(into, value.split([p.shape[0] for p in into])):
                parameter.copy_(rows)
    assert not theirs, f"these weights were not set: {list(theirs)}"
    tokens, targets = batch(1)
    logits = model(input_ids=tokens).logits
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    found = {"loss": loss.detach()[None], "logits": logits.detach()}
    for name, shape in SHAPES.items():
        grads = [model.get_parameter(f"{module}.weight").grad for module in parts[name]]
        found[f"grads.{name}"] = torch.cat(grads).reshape(shape)
    return found


def relative(x: torch.Tensor, to: torch.Tensor) -> float:
    """Returns ‖x - to‖ / ‖to‖."""
    return ((x.double() - to.double()).norm() / to.double().norm()).item()


def check_architecture(ours: dict[str, torch.Tensor]) -> None:
    for name, theirs in run_huggingface().items():
        assert relative(ours[name], theirs) < 3e-6, f"{name} differs from Qwen3's by {relative(ours[name], theirs):.1e}"


def scalars(**values: float | list[float]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value, dtype=torch.float64).reshape(-1) for name, value in values.items()}


def model_fixture() -> dict[str, torch.Tensor]:
    fp32, truth = run(torch.float32), run(torch.float64)
    narrow = run(torch.float32, autocast=True)
    check_architecture(fp32)
    out = {}
    for name, value in fp32.items():
        out[f"fp32.{name}"] = value
        out[f"rest.{name}"] = (truth[name] - value.double()).bfloat16()
        # The rest of the loss stays in f64: it is a single number.
        if name == "loss":
            out[f"rest.{name}"] = truth[name] - value.double()
        a, b = narrow[name].double().flatten(), value.double().flatten()
        out |= scalars(**{
            f"fp32.error.{name}": relative(value, truth[name]),
            f"bf16.error.{name}": relative(narrow[name], truth[name]),
            f"bf16.cosine.{name}": (a @ b / (a.norm() * b.norm())).item(),
            f"bf16.norm_ratio.{name}": (a.norm() / b.norm()).item(),
        })
    apart = (narrow["logits"].double() - fp32["logits"].double()).abs().flatten()
    apart = (apart / fp32["logits"].double().square().mean().sqrt()).sort().values
    p99 = apart[math.ceil(0.99 * len(apart)) - 1]
    return out | scalars(**{"bf16.logits.mean": apart.mean().item(), "bf16.logits.p99": p99.item()})


def attention_fixture() -> dict[str, torch.Tensor]:
    found = run(torch.float32, attention=capped_in_window)
    kept = ["loss", "logits", "grads.embedding", *(f"grads.blocks.{layer}.qkv" for layer in range(LAYERS))]
    return {name: found[name] for name in kept}


def learning_rate(t: int, peak: float, warmup: int, steps: int, floor: float) -> float:
    """Returns the learning rate of step `t`, which counts from 1.

    It rises linearly to the peak, then falls along half a cosine to `floor` times the peak.
    """
    if t <= warmup:
        return peak * t / warmup
    done = (t - warmup) / (steps - warmup)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done)))


def adamw(matrices: list[torch.Tensor], vectors: list[torch.Tensor]) -> torch.optim.AdamW:
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=BETAS, eps=ADAM_EPS, foreach=False, fused=False)


def train(dtype: torch.dtype) -> tuple[dict[str, list[float]], dict[str, torch.Tensor]]:
    """Takes three of six scheduled steps, with gradients clipped to a norm of 0.5.

    Returns the numbers of each step, and the parameters at the end.
    """
    w = weights(dtype)
    optimizer = adamw([v for v in w.values() if v.dim() > 1], [v for v in w.values() if v.dim() == 1])
    rows = {"loss": [], "grad_norm": [], "lr": []}
    for t in range(1, 4):
        lr = learning_rate(t, peak=1e-3, warmup=2, steps=6, floor=0.1)
        for group in optimizer.param_groups:
            group["lr"] = lr
        tokens, targets = batch(t)
        loss = cross_entropy(forward(w, tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(w.values(), 0.5, foreach=False)
        optimizer.step()
        for name, value in (("loss", loss.item()), ("grad_norm", norm.item()), ("lr", lr)):
            rows[name].append(value)
    return rows, {name: value.detach() for name, value in w.items()}


def training_fixture() -> dict[str, torch.Tensor]:
    rows, after = train(torch.float32)
    truth, truth_after = train(torch.float64)
    assert all(norm > 0.5 for norm in rows["grad_norm"]), "every step must be clipped"
    start = weights(torch.float64)
    out = scalars(**rows, **{f"truth.{name}": values for name, values in truth.items()})
    for name, value in after.items():
        moved, truly = (end.double() - start[name].detach() for end in (value, truth_after[name]))
        out |= {f"params.{name}": value, **scalars(**{f"error.{name}": relative(moved, truly)})}
    return out


class Numbers:
    """16 numbers with weight decay, 8 without, and their optimizer."""

    def __init__(self):
        matrix = uniform("adamw.matrix", 16).float().requires_grad_()
        vector = (1 + uniform("adamw.vector", 8) / 4).float().requires_grad_()
        self.tensors = [matrix, vector]
        self.optimizer = adamw([matrix], [vector])

    def step(self, lr: float, gradients: torch.Tensor) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        for tensor, gradient in zip(self.tensors, gradients.split([16, 8])):
            tensor.grad = gradient
        self.optimizer.step()

    def state(self) -> dict[str, torch.Tensor]:
        states = [self.optimizer.state[tensor] for tensor in self.tensors]
        parts = {"params": self.tensors, "m": [s["exp_avg"] for s in states], "v": [s["exp_avg_sq"] for s in states]}
        return {name: torch.cat(tensors).detach() for name, tensors in parts.items()}

    def copy_from(self, other: "Numbers") -> None:
        with torch.no_grad():
            for into, value in zip(self.tensors, other.tensors):
                into.copy_(value)
        self.optimizer.load_state_dict(copy.deepcopy(other.optimizer.state_dict()))


def rounded_root(x: torch.Tensor) -> torch.Tensor:
    """Returns √x correctly rounded, as a GPU computes it.

    PyTorch's CPU build takes the root from MKL, which is off by an ulp for one number in six. Where decay and step
    cancel, one ulp grows to many.
    """
    return torch.sqrt(x.double()).float()


def adamw_fixture() -> dict[str, torch.Tensor]:
    """Steps AdamW with correctly rounded roots, and checks every step against unmodified PyTorch."""
    steps, count = 1000, 24
    numbers, stock = Numbers(), Numbers()
    after = {"params": [], "m": [], "v": []}
    for t, gradients in enumerate(adamw_gradients(steps, count), start=1):
        lr = learning_rate(t, peak=3e-2, warmup=100, steps=steps, floor=0.1)
        before = torch.cat(numbers.tensors).detach()
        stock.copy_from(numbers)
        stock.step(lr, gradients)
        with patch.object(torch.Tensor, "sqrt", rounded_root):
            numbers.step(lr, gradients)
        for name, value in numbers.state().items():
            after[name].append(value)
        as_it_comes = stock.state()
        assert torch.equal(as_it_comes["m"], after["m"][-1]) and torch.equal(as_it_comes["v"], after["v"][-1])
        largest = torch.maximum(before.abs(), after["params"][-1].abs())
        ulp = torch.nextafter(largest, torch.tensor(math.inf)) - largest
        assert ((as_it_comes["params"] - after["params"][-1]).abs() <= 2 * ulp).all(), f"step {t}"
    return {name: torch.stack(rows) for name, rows in after.items()}


def adamw_gradients(steps: int, count: int) -> torch.Tensor:
    """Returns gradients whose scales differ widely.

    Element `k` has the scale 2^scales[k mod 8], except that every third element draws its scale anew at each step.
    About one gradient in eight is 0.
    """
    scales = [0, -10, -20, -30, -50, -70, 10, 40]
    u = uniform("adamw.gradients", steps * count)
    choice = torch.from_numpy((bits("adamw.choices", steps * count) >> np.uint64(58)).astype(np.int64))
    k = torch.arange(steps * count) % count
    scale = torch.tensor(scales, dtype=torch.float64)[torch.where(k % 3 == 2, choice % 8, k % 8)]
    return torch.where(choice // 8 == 0, 0.0, u * 2.0**scale).float().reshape(steps, count)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", metavar="DIR", type=Path)
    folder = arguments.parse_args().folder
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder.mkdir(parents=True, exist_ok=True)
    fixtures = {
        "model": model_fixture,
        "attention": attention_fixture,
        "training": training_fixture,
        "adamw": adamw_fixture,
    }
    for name, make in fixtures.items():
        path = folder / f"{name}.safetensors"
        save_file({key: value.contiguous() for key, value in make().items()}, path)
        print(f"{path}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
