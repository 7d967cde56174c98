#!/usr/bin/env python3
"""Trains pairs of tiny runs and prints their validation losses, for the simulations of verdicts on quality.

    cargo build --release
    python3 scripts/paired_differences.py --xrun target/release/xrun > tests/compare/paired-differences.csv

The columns are the set, and for each side the keys it sets, its seed (`training.seed`) and its validation loss in nats
per token; then candidate - baseline. The sets, each with what the candidate changes:

    qk_norm          no QK-norm; the two sides share no initial values
    lr               a learning rate a quarter higher; initial values and data order are shared
    disjoint         only the seed (A/A)
    arithmetic       engine.fused=false with the same seed: the same training, rounded differently (A/A)
    arithmetic_bf16  the same in bf16, where rounding errors are larger (A/A)

A run trains on 41,000 tokens, which takes a second or two on one thread. A run that several sets use is trained once.
"""

import argparse
import concurrent.futures
import csv
import pathlib
import subprocess
import sys
import tempfile

RECIPE = """
[model]
dim = 32
n_layers = 2
head_dim = 16
[training]
seq_len = 64
local_batch_size = 8
steps = 80
dtype = "fp32"
[optimizer]
lr = 0.01
[lr_scheduler]
warmup_ratio = 0.1
decay = "cosine"
min_lr_ratio = 0.1
[data]
corpus = "stories"
tokenizer = "stories"
[checkpoint]
interval = 0
[validation]
interval = 80
steps = 8
[engine]
device = "cpu"
threads = 1
"""

# Set: keys of the baseline, keys of the candidate, the offset of the candidate's seed, the number of pairs.
SETS = {
    "qk_norm": ("", "model.qk_norm=false", 0, 128),
    "lr": ("", "optimizer.lr=0.0125", 0, 128),
    "disjoint": ("", "", 1000, 128),
    "arithmetic": ("", "engine.fused=false", 0, 128),
    "arithmetic_bf16": ("training.dtype=bf16", "training.dtype=bf16 engine.fused=false", 0, 64),
}


def val_loss(xrun, folder, keys, seed):
    """Trains once and returns the last validation loss as text."""
    results = folder / f"{keys or 'baseline'}-{seed}"
    command = [xrun, "recipe.toml", f"training.seed={seed}", *keys.split(), "--results", str(results)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    (metrics,) = results.glob("recipe/*/metrics.csv")
    with metrics.open() as file:
        return [row["val_loss"] for row in csv.DictReader(file) if row["val_loss"]][-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--xrun", default="target/release/xrun")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sets", default=",".join(SETS))
    args = parser.parse_args()
    xrun = str(pathlib.Path(args.xrun).resolve())
    pairs = [
        (label, (baseline, seed), (candidate, seed + shift))
        for label, (baseline, candidate, shift, count) in SETS.items()
        if label in args.sets.split(",")
        for seed in range(1, count + 1)
    ]
    runs = sorted({side for _, *sides in pairs for side in sides})
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        folder = pathlib.Path(name)
        (folder / "recipe.toml").write_text(RECIPE)
        losses = dict(zip(runs, pool.map(lambda run: val_loss(xrun, folder, *run), runs)))
    sides = [f"{side}_{column}" for side in ("baseline", "candidate") for column in ("keys", "seed", "val_loss")]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["set", *sides, "difference"])
    for label, baseline, candidate in pairs:
        difference = float(losses[candidate]) - float(losses[baseline])
        out.writerow([label, *baseline, losses[baseline], *candidate, losses[candidate], f"{difference:.7f}"])


if __name__ == "__main__":
    main()
