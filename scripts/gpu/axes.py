"""Measures what each part of a model costs in speed, against the model without it."""

import statistics

from bench import Bench, attempt
from sizes import SIZES, Size
from speed import speed

# The sizes. Each has the width at which a feed-forward layer without a gate has as many parameters, and a
# window of a quarter of the sequence.
WIDTHS = {"dim384": (2304, 64), "base-160m": (3072, 256)}

AXES: dict[str, tuple[str, ...]] = {
    "LayerNorm": ("model.norm=layer_norm",),
    "LayerNorm without bias": ("model.norm=layer_norm", "model.norm_bias=false"),
    "norms without weights": ("model.norm_weight=false",),
    "norms after sublayers": ("model.norm_placement=post",),
    "norms before and after": ("model.norm_placement=sandwich",),
    "norm of the embedding": ("model.embedding_norm=true",),
    "parallel blocks": ("model.parallel_blocks=true",),
    "GEGLU": ("model.activation=geglu",),
    "GEGLU by tanh": ("model.activation=geglu_tanh",),
    "ReGLU": ("model.activation=reglu",),
    "GELU": ("model.activation=gelu", "model.ffn_dim=FFN"),
    "GELU by tanh": ("model.activation=gelu_tanh", "model.ffn_dim=FFN"),
    "squared ReLU": ("model.activation=relu2", "model.ffn_dim=FFN"),
    "SiLU": ("model.activation=silu", "model.ffn_dim=FFN"),
    "biases": ("model.bias=true",),
    "learned positions": ("model.position=learned",),
    "no positions": ("model.position=none",),
    "a quarter of a head turns": ("model.rope_fraction=0.25",),
    "negative rotation": ("model.rope_direction=negative",),
    "YaRN": ("model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_context=256"),
    "no QK-norm": ("model.qk_norm=false",),
    "QK-norm after RoPE": ("model.qk_norm_place=after_rope",),
    "QK-norm without weights": ("model.qk_norm_weight=false",),
    "window of a quarter": ("model.window=WINDOW",),
    "window, every 4th layer global": ("model.window=WINDOW", "model.global_interval=4"),
    "scores capped at 50": ("model.score_cap=50",),
    "logits capped at 30": ("model.logit_cap=30",),
    "scaled embedding": ("model.embedding_scale=16",),
    "z-loss": ("training.z_loss=1e-4",),
    "label smoothing": ("training.label_smoothing=0.1",),
    "tied embeddings": ("model.tie_embeddings=true",),
}


def axes(bench: Bench) -> None:
    """Times every axis in turns with the plain model, at each size."""
    for name in bench.sizes or WIDTHS:
        ffn, window = WIDTHS[name]
        found: dict[str, list[float]] = {}
        for _ in range(bench.turns):
            for axis, keys in {"": (), **AXES}.items():
                keys = [key.replace("FFN", str(ffn)).replace("WINDOW", str(window)) for key in keys]
                attempt(bench, f"{name} {axis}", lambda a=axis, k=keys, f=found, s=SIZES[name]: turn(bench, s, a, k, f))
        plain = found.pop("", [])
        for axis, speeds in found.items():
            if len(speeds) == len(plain):
                report(bench, f"{name} {axis}", plain, speeds)


def turn(bench: Bench, size: Size, axis: str, keys: list[str], found: dict[str, list[float]]) -> None:
    """Trains once and adds the tokens per second to `found`."""
    found.setdefault(axis, []).append(speed(bench, size, keys)["tok_s"])


def report(bench: Bench, what: str, plain: list[float], speeds: list[float]) -> None:
    """Adds the ratio of step times to the table: 1.02 means that a step takes 2 % longer."""
    ratios = [before / after for before, after in zip(plain, speeds, strict=True)]
    ratio = statistics.geometric_mean(ratios)
    spread = f" ({min(ratios):.3f} to {max(ratios):.3f})" if len(ratios) > 1 else ""
    bench.note(what, f"{ratio:.3f} of the step time{spread}", ratio=ratio, tok_s=statistics.median(speeds))
