"""Checks that optimizers, averages, ramps, widths and formulas give equal bits, and measures what they cost."""

import hashlib
import json

import axes
from bench import Bench, Run, attempt
from exact import SMALL, killed_and_resumed
from sizes import SIZES, Size

# Trainings whose bits must not depend on graphs, on placement, or on being killed and resumed.
TRAININGS: dict[str, tuple[str, ...]] = {
    "Muon": ("optimizer.name=muon",),
    "Muon, original adjustment": ("optimizer.name=muon", "optimizer.adjust=original"),
    "Lion": ("optimizer.name=lion", "optimizer.lr=1e-4"),
    "SGD": ("optimizer.name=sgd", "optimizer.lr=0.1"),
    "groups": ("optimizer.groups.embedding.name=lion", "optimizer.groups.head.lr=1e-3"),
    "moving average": ("ema.decay=0.99", "ema.evaluate=true"),
    "ramp of the batch": ("training.accumulation=4", "training.batch_ramp=[[60,5],[120,10]]"),
    "muP": ("model.parametrization=mup", "model.base_dim=64", "model.head_init=zero"),
    "formula": ("model.activation=silu(a) * b",),
}

# Sizes at which Muon's cost is measured against AdamW. The cost depends on the tokens per step.
UPDATES = {
    "base-160m, 131,072 tokens": Size("base-160m", ("training.accumulation=8",), ()),
    "base-160m, 16,384 tokens": SIZES["base-160m"],
    "dim384, 32,768 tokens": Size("dim384", ("training.local_batch_size=128",), ()),
}

# Formulas, each with the keys of the built-in activation that is the same function, and its own keys.
# Activations without a gate get the width at which the layer has as many parameters.
FORMULAS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "silu(a) * b": (("model.activation=swiglu",), ("model.activation=silu(a) * b",)),
    "relu(x)^2": (
        ("model.activation=relu2", "model.ffn_dim=3072"),
        ("model.activation=relu(x)^2", "model.ffn_dim=3072"),
    ),
}


def optimizers(bench: Bench) -> None:
    """Checks that each training has the same bits, however it is executed and whether its average is evaluated."""
    recipe = bench.work / "optimizers.toml"
    recipe.write_text(SMALL.replace("DTYPE", "bf16"))
    for name, keys in TRAININGS.items():
        attempt(bench, name, lambda n=name, k=keys: same_bits(bench, recipe, n, [*k]))
    attempt(bench, "evaluating an average", lambda: unchanged_by_evaluation(bench, recipe))


def same_bits(bench: Bench, recipe, name: str, keys: list[str]) -> None:
    """Compares a training with itself without graphs, with poisoned memory, and killed and resumed."""
    first = bench.train(recipe, keys)
    want = first.digest()
    losses = first.losses()
    bench.note(name, f"loss {losses[0]:.4f} to {losses[-1]:.4f}", losses[-1] < losses[0] - 0.5)
    same = ["--algos-from", str(first.path)] if bench.device == "cuda" else []
    ways = {
        "no graphs, full recompute": ["engine.cuda_graphs=false", "activation_checkpoint.mode=full"],
        "caching, poisoned": ["engine.placement=caching", "engine.poison=true"],
    }
    if bench.device != "cuda":
        ways["no graphs, full recompute"] = ["activation_checkpoint.mode=full"]
    for what, way in ways.items():
        differing(bench, f"{name}: {what}", want, bench.train(recipe, [*keys, *way], *same).digest())
    resumed = killed_and_resumed(bench, recipe, [*keys, *same])
    differing(bench, f"{name}: killed and resumed", want, resumed.digest())


def differing(bench: Bench, what: str, want: dict[str, str], have: dict[str, str]) -> None:
    """Adds to the table which files have different bits."""
    other = [name for name in want if have[name] != want[name]]
    bench.note(what, f"{', '.join(other)} differ" if other else "the same bits", not other)


def unchanged_by_evaluation(bench: Bench, recipe) -> None:
    """Checks that evaluating the moving average does not change the training."""
    first = bench.train(recipe, ["ema.decay=0.99", "ema.evaluate=true"])
    same = ["--algos-from", str(first.path)] if bench.device == "cuda" else []
    silent = bench.train(recipe, ["ema.decay=0.99"], *same)
    differing(bench, "evaluating an average", without_average(first), without_average(silent))


def without_average(run: Run) -> dict[str, str]:
    """Hashes the tensors, and the columns of `metrics.csv` that do not depend on the average."""
    digest = run.digest()
    rows = [run.column(name) for name in ("step", "loss", "val_loss", "grad_norm")]
    return {**digest, "metrics.csv": hashlib.sha256(json.dumps(rows).encode()).hexdigest()}


def updates(bench: Bench) -> None:
    """Measures the cost of Muon against AdamW, and of a formula against the built-in function, in turns."""
    for name, size in UPDATES.items():
        attempt(bench, name, lambda n=name, s=size: beside(bench, f"Muon, {n}", s, (), ("optimizer.name=muon",)))
    for formula, (built_in, keys) in FORMULAS.items():
        attempt(bench, formula, lambda f=formula, b=built_in, k=keys: beside(bench, f, SIZES["base-160m"], b, k))


def beside(bench: Bench, what: str, size: Size, plain: tuple[str, ...], changed: tuple[str, ...]) -> None:
    """Measures the ratio of two trainings' step times. `ops tune` first chooses matmuls at the sustained clock."""
    found: dict[str, list[float]] = {"plain": [], "changed": []}
    for keys in (plain, changed):
        bench.call([bench.xrun, "ops", "tune", size.recipe, *size.keys, *keys, "--missing"])
    for _ in range(bench.turns):
        for side, keys in (("plain", plain), ("changed", changed)):
            axes.turn(bench, size, side, [*keys], found)
    axes.report(bench, what, found["plain"], found["changed"])
