#!/usr/bin/env python3
"""Compares the texts of data/models/ideas with models that others wrote: a step's loss and every gradient.

    model_texts.py XRUN [--only TEXT] [--plant] [--nanochat CLONE] [--modded-nanogpt CLONE]

xrun trains a small model of each text for three steps, in fp32 on the CPU, so that no parameter keeps its
initial value. AdamW with a first decay rate of 0 stores the third step's gradients; the weights before it are
in the second checkpoint. The reference gets these weights, by a table of names for each text, and the same
tokens. It is a class of transformers or, for the last three texts, code in a git clone, which is read at the
commit that the text names, whatever is checked out. Without a clone its texts are skipped.

A text is WRONG if

- the losses are further apart than 1e-6 of the loss,
- the gradients of a parameter are further apart than 1e-5 of their norm, or of a thousandth of the norm of
  all gradients if that is larger (a gradient in which almost everything cancels has the rounding of its
  parts),
- `xrun model check --compute` with the same keys fails, which also compares generation with a cache with the
  whole text.

Exits with 1 if a text is WRONG. `--plant` puts a fault into every reference: all texts must then be WRONG.
Needs torch, transformers and safetensors.
"""

import argparse
import csv
import io
import json
import math
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Callable

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call

TEXTS = Path(__file__).resolve().parent.parent / "data/models/ideas"
NANOCHAT = "92d63d4e8bb4df75c3b71618f31ddde2378b2bcd"
MODDED_NANOGPT = "f411b3d346aa52d3504324ca93c230fd84c6c07f"
U_NET = "records/track_1_short/2024-11-10_UNetDoubleLr/c87bb826-797b-4f37-98c7-d3a5dad2de74.txt"
TRACK_3 = "records/track_3_optimization/train_gpt_simple.py"

LOSS, GRADIENT, LEAST = 1e-6, 1e-5, 1e-3
BATCH = 4
# In fp32, torch's rms_norm adds this number by default.
TORCH_EPS = torch.finfo(torch.float32).eps
KEYS = {
    "data.tokenizer": "byte", "data.corpus": "random", "data.cross_documents": "true", "training.dtype": "fp32",
    "training.local_batch_size": BATCH, "training.steps": 3, "training.max_norm": 0, "optimizer.lr": 0.03,
    "optimizer.betas": "[0, 0.95]", "optimizer.weight_decay": 0, "lr_scheduler.min_lr_ratio": 1,
    "lr_scheduler.warmup_ratio": 0, "checkpoint.interval": 1, "checkpoint.keep": 3, "validation.interval": 0,
    "generation.samples": 0, "metrics.interval": 1,
}


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, and how a class of transformers computes its attention."""

    dim: int = 64
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 192
    vocab: int = 320
    seq: int = 32
    window: int | None = None
    attention: str = "eager"

    def keys(self) -> dict[str, object]:
        """Returns the recipe's keys."""
        keys = {
            "model.dim": self.dim, "model.n_layers": self.layers, "model.n_heads": self.heads,
            "model.n_kv_heads": self.kv_heads, "model.head_dim": self.head_dim, "model.ffn_dim": self.ffn,
            "model.vocab_size": self.vocab, "training.seq_len": self.seq,
        }
        return keys if self.window is None else keys | {"model.window": self.window}

    def config(self) -> dict[str, object]:
        """Returns arguments of transformers' configurations."""
        return {
            "vocab_size": self.vocab, "hidden_size": self.dim, "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": self.seq, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
            "pad_token_id": None, "eos_token_id": None, "use_cache": False, "attn_implementation": self.attention,
        }


@dataclass
class Case:
    """How a text is compared. `build(shape, plant)` makes the reference, with or without a fault.

    `names` maps each parameter of the text, without its block, to the reference's, among which its rows are
    divided; `{}` is the block. `arrange` changes the order of these rows and adds what `names` cannot say.
    `keys` are set besides those that the shape gives.
    """

    build: Callable[[Shape, bool], nn.Module]
    names: dict[str, list[str]]
    keys: dict[str, object]
    arrange: Callable[[Shape, dict[str, Tensor], dict[str, Tensor]], None] = lambda shape, theirs, ours: None
    shape: Shape = Shape()


def interleaved(rows: Tensor, heads: int) -> Tensor:
    """Makes pairs (i, i + width / 2) of each head's rows pairs (2i, 2i + 1)."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


# The parameters' names in classes of transformers that began as Llama, and in scripts that began as nanoGPT.
LAYER, ATTENTION = "model.layers.{}.", "model.layers.{}.self_attn."
LLAMA = {
    "embedding": ["model.embed_tokens.weight"],
    "final_norm": ["model.norm.weight"],
    "attention_norm": [LAYER + "input_layernorm.weight"],
    "qkv": [ATTENTION + f"{name}_proj.weight" for name in "qkv"],
    "out": [ATTENTION + "o_proj.weight"],
    "ffn_norm": [LAYER + "post_attention_layernorm.weight"],
    "gate_up": [LAYER + "mlp.gate_proj.weight", LAYER + "mlp.up_proj.weight"],
    "down": [LAYER + "mlp.down_proj.weight"],
    "head": ["lm_head.weight"],
}
GEMMA2 = LLAMA | {
    "attention_output_norm": [LAYER + "post_attention_layernorm.weight"],
    "ffn_norm": [LAYER + "pre_feedforward_layernorm.weight"],
    "ffn_output_norm": [LAYER + "post_feedforward_layernorm.weight"],
}
PARALLEL = LLAMA | {"norm": [LAYER + "input_layernorm.weight"]}
LATENT = LLAMA | {
    "q_down": [ATTENTION + "q_a_proj.weight"],
    "q_norm": [ATTENTION + "q_a_layernorm.weight"],
    "q_up": [ATTENTION + "q_b_proj.weight"],
    "kv_down": [ATTENTION + "kv_a_proj_with_mqa.weight"],
    "kv_norm": [ATTENTION + "kv_a_layernorm.weight"],
    "kv_up": [ATTENTION + "kv_b_proj.weight"],
}
DIFFERENTIAL = LLAMA | {name: [ATTENTION + f"lambda_{name}"] for name in ("q1", "k1", "q2", "k2")}
GATED = LLAMA | {"qkv": [], "gate": []} | {name: [ATTENTION + f"{name}.weight"] for name in ("q_norm", "k_norm")}
GPT = {
    "embedding": ["transformer.wte.weight"],
    "qkv": [f"transformer.h.{{}}.attn.c_{name}.weight" for name in "qkv"],
    "out": ["transformer.h.{}.attn.c_proj.weight"],
    "up": ["transformer.h.{}.mlp.c_fc.weight"],
    "down": ["transformer.h.{}.mlp.c_proj.weight"],
    "head": ["lm_head.weight"],
} | {name: [] for name in ("x_share", "x0_share", "skip", "first_share")}
NANOCHAT_NAMES = GPT | {
    "qk": GPT["qkv"][:2],
    "v": GPT["qkv"][2:],
    "smear_gate": ["smear_gate.weight"],
    "smear": ["smear_lambda"],
    "backout": ["backout_lambda"],
    "values": ["value_embeds.{}.weight"],
    "value_gate": ["transformer.h.{}.attn.ve_gate.weight"],
}
TRACK_3_NAMES = {
    "embedding": ["embed.weight"],
    "embedding_norm": ["norm1.gains"],
    "attention_norm": ["blocks.{}.norm1.gains"],
    "ffn_norm": ["blocks.{}.norm2.gains"],
    "final_norm": ["norm2.gains"],
    "head": ["proj.weight"],
    "head_bias": ["proj.bias"],
}
for name, modules in {"qkv": "attn.q attn.k attn.v", "out": "attn.proj", "up": "mlp.fc", "down": "mlp.proj"}.items():
    TRACK_3_NAMES[name] = [f"blocks.{{}}.{module}.weight" for module in modules.split()]
    TRACK_3_NAMES[f"{name}_bias"] = [f"blocks.{{}}.{module}.bias" for module in modules.split()]


def gemma2(shape: Shape, plant: bool) -> nn.Module:
    config = transformers.Gemma2Config(
        **shape.config(), head_dim=shape.head_dim, sliding_window=shape.window,
        attn_logit_softcapping=49.0 if plant else 50.0,
    )
    return transformers.Gemma2ForCausalLM(config)


def parallel(shape: Shape, plant: bool) -> nn.Module:
    config = transformers.CohereConfig(**shape.config(), logit_scale=0.063 if plant else 0.0625)
    return transformers.CohereForCausalLM(config)


def arrange_parallel(shape: Shape, theirs: dict[str, Tensor], _ours: dict[str, Tensor]) -> None:
    for i in range(shape.layers):
        for name, heads in ("q", shape.heads), ("k", shape.kv_heads):
            rows = f"model.layers.{i}.self_attn.{name}_proj.weight"
            theirs[rows] = interleaved(theirs[rows], heads)


def latent_attention(shape: Shape, plant: bool) -> nn.Module:
    config = transformers.DeepseekV3Config(
        **shape.config() | {"num_key_value_heads": shape.heads}, q_lora_rank=12 * shape.head_dim,
        kv_lora_rank=4 * shape.head_dim, qk_nope_head_dim=shape.head_dim, qk_rope_head_dim=shape.head_dim // 2,
        v_head_dim=shape.head_dim, first_k_dense_replace=shape.layers, rms_norm_eps=1e-5, rope_interleave=not plant,
    )
    return transformers.DeepseekV3ForCausalLM(config)


def arrange_latent_attention(shape: Shape, theirs: dict[str, Tensor], _ours: dict[str, Tensor]) -> None:
    rotated = shape.head_dim // 2
    for i in range(shape.layers):
        q, kv = (f"model.layers.{i}.self_attn.{name}.weight" for name in ("q_b_proj", "kv_a_proj_with_mqa"))
        plain, turned = theirs[q].unflatten(0, (shape.heads, -1)).split([shape.head_dim, rotated], 1)
        turned = interleaved(turned.flatten(0, 1), shape.heads).unflatten(0, (shape.heads, -1))
        theirs[q] = torch.cat([plain, turned], 1).flatten(0, 1)
        theirs[kv] = torch.cat([theirs[kv][:-rotated], interleaved(theirs[kv][-rotated:], 1)])


def differential_attention(shape: Shape, plant: bool) -> nn.Module:
    config = transformers.DiffLlamaConfig(**shape.config(), rms_norm_eps=1e-5, head_dim=shape.head_dim)
    model = transformers.DiffLlamaForCausalLM(config)
    if plant:
        model.model.layers[1].self_attn.lambda_init += 1e-3
    return model


def gated_attention(shape: Shape, plant: bool) -> nn.Module:
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5 if plant else 0.25}
    config = transformers.Qwen3NextConfig(
        **shape.config() | {"rope_parameters": rope}, head_dim=shape.head_dim, num_experts=0,
        layer_types=["full_attention"] * shape.layers,
    )
    return transformers.Qwen3NextForCausalLM(config)


def arrange_gated_attention(shape: Shape, theirs: dict[str, Tensor], ours: dict[str, Tensor]) -> None:
    # There a head's query and its gate are side by side.
    for i in range(shape.layers):
        at, gate = f"model.layers.{i}.self_attn.", ours[f"blocks.{i}.gate"]
        q, k, v = ours[f"blocks.{i}.qkv"].split([len(gate), len(gate) // 2, len(gate) // 2])
        heads = [rows.unflatten(0, (shape.heads, -1)) for rows in (q, gate)]
        theirs[at + "q_proj.weight"] = torch.cat(heads, 1).flatten(0, 1)
        theirs |= {at + "k_proj.weight": k, at + "v_proj.weight": v}


def stack(shape: Shape, theirs: dict[str, Tensor], ours: dict[str, Tensor], **vectors: str) -> None:
    """Makes vectors with an element for each block of the scalars that blocks have."""
    for vector, name in vectors.items():
        theirs[vector] = torch.cat([ours[at] for i in range(shape.layers) if (at := f"blocks.{i}.{name}") in ours])


def git_show(clone: Path, commit: str, path: str) -> str:
    command = ["git", "-C", clone, "show", f"{commit}:{path}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def classes(text: str, begin: str, end: str, changes: dict[str, str]) -> SimpleNamespace:
    """Runs the part of a script that defines its model. The rest trains when it is imported."""
    part = text[text.index(begin) : text.index(end)]
    for old, new in changes.items():
        assert old in part, f"the script has no {old}"
        part = part.replace(old, new)
    found: dict[str, object] = {"torch": torch, "nn": nn, "F": F, "Tensor": Tensor, "dataclass": dataclass}
    exec(part, found)
    return SimpleNamespace(**found)


def u_net(clone: Path, shape: Shape, plant: bool) -> nn.Module:
    text = git_show(clone, MODDED_NANOGPT, U_NET)
    changes = {".bfloat16()": ""} | ({"pop()": "pop(0)"} if plant else {})
    code = classes(text, "class Rotary(", "# Our own simple Distributed Data Loader", changes)
    return code.GPT(code.GPTConfig(shape.vocab, shape.layers, shape.heads, shape.dim))


def arrange_u_net(shape: Shape, theirs: dict[str, Tensor], ours: dict[str, Tensor]) -> None:
    stack(shape, theirs, ours, skip_weights="skip")
    for i in range(shape.layers):
        at = f"transformer.h.{i}."
        theirs[at + "lambdas"] = torch.cat([ours[f"blocks.{i}.x_share"], ours[f"blocks.{i}.x0_share"]])
        # The first block mixes its values with themselves, whatever this number is. The text leaves it out.
        theirs[at + "attn.lamb"] = ours[f"blocks.{i}.first_share"][0] if i > 0 else torch.tensor(0.5)


def nanochat(clone: Path, shape: Shape, plant: bool) -> nn.Module:
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "-C", clone, "archive", NANOCHAT, "nanochat"], check=True, capture_output=True)
        tarfile.open(fileobj=io.BytesIO(archive.stdout)).extractall(folder, filter="data")
        sys.path.insert(0, folder)
        from nanochat.gpt import GPT, GPTConfig

    model = GPT(GPTConfig(shape.seq, shape.vocab, shape.layers, shape.heads, shape.kv_heads, shape.dim))
    # Its own short windows have at least 128 tokens. The number leaves out the query's own key.
    model.window_sizes = [(shape.window - (not plant), 0)] * (shape.layers - 1) + [(shape.seq, 0)]
    return model


def arrange_nanochat(shape: Shape, theirs: dict[str, Tensor], ours: dict[str, Tensor]) -> None:
    stack(shape, theirs, ours, resid_lambdas="x_share", x0_lambdas="x0_share")


def modded_nanogpt(clone: Path, shape: Shape, plant: bool) -> nn.Module:
    text = git_show(clone, MODDED_NANOGPT, TRACK_3)
    changes = {
        ".bfloat16()": "",
        'reduction="sum"': 'reduction="mean"',
        "head_dim=128": f"head_dim={shape.head_dim}",
    } | ({"scale=0.12": "scale=0.121"} if plant else {})
    code = classes(text, "class RMSNorm(", f"{'#' * 40}\n#              Optimizer", changes)
    return code.GPT(shape.vocab, shape.layers, shape.dim)


def arrange_modded_nanogpt(shape: Shape, theirs: dict[str, Tensor], _ours: dict[str, Tensor]) -> None:
    for at in theirs:
        if ".attn.q." in at or ".attn.k." in at:
            # There the first and the third quarter of a head are rotated together.
            theirs[at] = theirs[at].unflatten(0, (shape.heads, 4, -1))[:, [0, 2, 1, 3]].flatten(0, 2)


def cases(clones: argparse.Namespace) -> dict[str, Case | None]:
    """Returns the texts, with None for those whose clone is not given."""
    found: dict[str, Case | None] = {
        "gemma2": Case(gemma2, GEMMA2, {"optimizer.lr": 0.15}, shape=Shape(head_dim=32, window=7)),
        "parallel": Case(parallel, PARALLEL, {"model.logit_scale": 0.0625, "model.norm_eps": 1e-5}, arrange_parallel),
        "latent_attention": Case(latent_attention, LATENT, {"model.norm_eps": 1e-5}, arrange_latent_attention),
        "differential_attention": Case(differential_attention, DIFFERENTIAL, {"model.norm_eps": 1e-5}),
        "gated_attention": Case(
            gated_attention, GATED, {"model.rope_fraction": 0.25}, arrange_gated_attention, Shape(head_dim=32)
        ),
    } | dict.fromkeys(("u_net", "nanochat_2026", "modded_nanogpt"))
    eps = {"model.norm_eps": TORCH_EPS}
    if clone := clones.modded_nanogpt:
        wide = Shape(kv_heads=4, ffn=256)
        found["u_net"] = Case(partial(u_net, clone), GPT, eps, arrange_u_net, wide)
        track_3 = partial(modded_nanogpt, clone)
        found["modded_nanogpt"] = Case(track_3, TRACK_3_NAMES, eps, arrange_modded_nanogpt, wide)
    if clone := clones.nanochat:
        keys = eps | {"model.rope_theta": 100_000}
        wide = Shape(ffn=256, window=7)
        found["nanochat_2026"] = Case(partial(nanochat, clone), NANOCHAT_NAMES, keys, arrange_nanochat, wide)
    return found


def xrun_step(xrun: Path, arguments: list[str]) -> tuple[Tensor, float, dict[str, Tensor], dict[str, Tensor]]:
    """Returns the windows of the third step, its loss, the weights before it and its gradients."""

    def call(*what: str) -> str:
        done = subprocess.run([xrun, *what], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{what[0]} {what[1]} fails: {done.stderr or done.stdout}")
        return done.stdout

    with tempfile.TemporaryDirectory() as folder:
        call("run", *arguments, "--results", folder)
        run = next(Path(folder).glob("*/*/metrics.csv")).parent
        losses = {row["step"]: float(row["loss"]) for row in csv.DictReader((run / "metrics.csv").open())}
        weights = load_file(run / "checkpoint/step-000002/model.safetensors")
        slots = load_file(run / "checkpoint/step-000003/optimizer.safetensors")
    shown = json.loads(call("data", "show", *arguments, "--step", "3", "--sequences", str(BATCH), "--json"))
    windows = [[token for piece in row["pieces"] for token in piece["tokens"]] for row in shown["sequences"]]
    gradients = {name: slots[f"adam.m.{name}"] for name in weights}
    return torch.tensor(windows), losses["3"], weights, gradients


def reference_step(
    case: Case, plant: bool, windows: Tensor, weights: dict[str, Tensor]
) -> tuple[float, dict[str, Tensor]]:
    """Returns the reference's loss and its gradients by the text's names. Autograd reverses the mapping."""
    model = case.build(case.shape, plant).eval()
    ours = {name: value.clone().requires_grad_() for name, value in weights.items()}
    parameters, theirs = dict(model.named_parameters()), {}
    for name, value in ours.items():
        block = name.split(".")[1] if name.startswith("blocks.") else ""
        into = [other.format(block) for other in case.names[name.rsplit(".", 1)[-1]]]
        rows = value.flatten(0, value.dim() - 2) if value.dim() > 2 else value
        theirs |= zip(into, rows.split([parameters[other].shape[0] for other in into]) if into else ())
    case.arrange(case.shape, theirs, ours)
    assert theirs.keys() == parameters.keys(), f"not matched: {theirs.keys() ^ parameters.keys()}"
    tokens, targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
    if isinstance(model, transformers.PreTrainedModel):
        loss = F.cross_entropy(functional_call(model, theirs, (tokens,)).logits.flatten(0, 1), targets.flatten())
    else:
        loss = functional_call(model, theirs, (tokens, targets))
    loss.backward()
    return loss.item(), {name: value.grad for name, value in ours.items()}


def check(xrun: Path, name: str, case: Case, plant: bool) -> bool:
    """Compares a text with its reference, prints a line and returns whether they agree."""
    keys = [f"{key}={value}" for key, value in (KEYS | case.shape.keys() | case.keys).items()]
    text = TEXTS / f"{name}.model"
    command = [xrun, "model", "check", text, "--recipe", "quickstart", "--compute", *keys]
    checked = subprocess.run(command, capture_output=True, text=True)
    windows, loss, weights, gradients = xrun_step(xrun, ["quickstart", f"model.definition={text}", *keys])
    their_loss, theirs = reference_step(case, plant, windows, weights)
    loss_error = abs(loss - their_loss) / their_loss
    norms = {at: value.norm().item() for at, value in theirs.items()}
    least = LEAST * math.hypot(*norms.values())
    errors = {at: (gradients[at] - theirs[at]).norm().item() / max(norms[at], least) for at in theirs}
    worst = max(errors, key=errors.__getitem__)
    good = loss_error <= LOSS and all(error <= GRADIENT for error in errors.values())
    shown = "ok" if good and checked.returncode == 0 else "WRONG"
    print(f"{name:<23} loss {loss_error:.1e}  gradients {errors[worst]:.1e} ({worst})  {shown}", flush=True)
    if checked.returncode != 0:
        print("".join(f"    {line}\n" for line in (checked.stdout + checked.stderr).splitlines()[-7:]), end="")
    return shown == "ok"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("xrun", metavar="XRUN", type=Path)
    arguments.add_argument("--only", metavar="TEXT", help="the name of one text")
    arguments.add_argument("--plant", action="store_true", help="put a fault into every reference")
    arguments.add_argument("--nanochat", metavar="CLONE", type=Path, help="a git clone of karpathy/nanochat")
    arguments.add_argument("--modded-nanogpt", metavar="CLONE", type=Path, help="one of KellerJordan/modded-nanogpt")
    args = arguments.parse_args()
    wrong = 0
    for name, case in cases(args).items():
        if args.only not in (None, name):
            continue
        if case is None:
            print(f"{name:<23} skipped: its reference is in a clone that is not given")
        else:
            wrong += not check(args.xrun.resolve(), name, case, args.plant)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
