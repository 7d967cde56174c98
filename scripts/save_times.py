#!/usr/bin/env python3
"""Compares step times without saves, with saves in the background, and with saves that training waits for.

    python3 scripts/save_times.py --xrun target/release/xrun --out dist                             # this CPU
    python3 scripts/save_times.py --xrun ./xrun --out dist recipes/gpt2-124m.toml training.steps=600 engine.device=cuda

Trains a recipe in the three modes, in turns. Prints for each mode the median step, the longest step during a write, the
longest step together with the copy of the state before it, and the percentage that saves add to the time of all steps;
each is the median over the turns. Exits with 1 if saves in the background miss the goals: the longest step takes at most
1.2 times the median, and saves add at most 1 %. Needs only Python.
"""

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LONGEST, IN_ALL = 1.2, 1.0
MODES = {
    "without saves": ["checkpoint.interval=0"],
    "beside training": ["checkpoint.background=always"],
    "training waits": ["checkpoint.background=never"],
}
# The first step that is measured; the steps before it are the warm-up.
FIRST = 20

RECIPE = """
[model]
dim = 384
n_layers = 6
n_heads = 6
head_dim = 64
ffn_dim = 1024
[training]
seq_len = 256
local_batch_size = 4
steps = 320
[data]
tokenizer = "byte"
train_tokens = 400_000
[metrics]
plots = false
[generation]
samples = 0
"""


def rows(run: Path) -> list[dict]:
    """Returns the rows of timing.csv from step `FIRST` on, without the last step and its save."""
    with (run / "timing.csv").open() as file:
        found = [row for row in csv.DictReader(file) if int(row["step"]) >= FIRST]
    last = max(int(row["step"]) for row in found)
    return [row for row in found if int(row["step"]) < last and row["phase"] in ("train", "snapshot", "save")]


def measure(found: list[dict]) -> dict:
    """Computes the figures of one run.

    `beside` are the steps during a write, and `longest stand` is the longest step together with the copy before it.
    """
    steps = [float(row["step_ms"]) for row in found if row["phase"] == "train"]
    beside = [float(row["step_ms"]) for row in found if row.get("written_step")]
    stands, pause = [0.0], 0.0
    for row in found:
        if row["phase"] == "train":
            stands.append(pause + float(row["step_ms"]) if pause else 0.0)
            pause = 0.0
        else:
            pause += float(row["step_ms"])
    quiet = [float(row["step_ms"]) for row in found if row["phase"] == "train" and not row.get("written_step")]
    return {
        "median": statistics.median(quiet or steps),
        "longest quiet": max(quiet, default=0.0),
        "beside": beside,
        "longest stand": max(stands),
        "seconds": sum(float(row["step_ms"]) for row in found) / 1e3,
    }


def main() -> int:
    """Trains in turns and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the table")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--every", type=int, default=100, help="steps between saves")
    parser.add_argument("recipe", nargs="?", help="[default: a CPU model of 10.8 million parameters]")
    parser.add_argument("set", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    measured = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="save-times-", dir=args.out) as work:
        recipe = Path(args.recipe).resolve() if args.recipe else Path(work).resolve() / "saves.toml"
        if not args.recipe:
            recipe.write_text(RECIPE)
        for turn in range(args.turns):
            for mode, keys in MODES.items():
                results = Path(work).resolve() / f"{turn}-{mode.replace(' ', '-')}"
                every = [] if mode == "without saves" else [f"checkpoint.interval={args.every}"]
                command = [args.xrun.resolve(), "--results", results, "run", recipe, "-q", *keys, *every, *args.set]
                subprocess.run(command, check=True, cwd=work, stdout=subprocess.DEVNULL)
                measured[mode].append(measure(rows(next(results.glob("*/*/timing.csv")).parent)))
    lines = ["| saves | median step (ms) | longest without a write | longest beside a write | longest step with its copy | steps beside | in all |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    holds = True
    for mode, turns in measured.items():
        median = statistics.median(turn["median"] for turn in turns)
        longest = statistics.median(max(turn["beside"], default=0.0) / turn["median"] for turn in turns)
        quiet = statistics.median(turn["longest quiet"] / turn["median"] for turn in turns)
        stand = statistics.median(turn["longest stand"] / turn["median"] for turn in turns)
        counts = [len(turn["beside"]) for turn in turns]
        # Compare with the run of the same turn, because the machine's speed drifts.
        pairs = zip(turns, measured["without saves"])
        added = statistics.median(100 * (turn["seconds"] / other["seconds"] - 1) for turn, other in pairs)
        lines.append(
            f"| {mode} | {median:.2f} | {quiet:.2f} × | {longest:.2f} × | {stand:.2f} × | {statistics.median(counts):.0f} | {added:+.2f} % |"
        )
        if mode == "beside training":
            holds = longest <= LONGEST and added <= IN_ALL
    table = "\n".join(lines) + "\n"
    (args.out / "save-times.md").write_text(table)
    print(table)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
