"""Interrupts runs on mixtures of up to twelve sources, and resumes them with other numbers of ranks."""

import csv
import json
import math
import time
from pathlib import Path

from interruptions import strike_at
from trial import Failed, Trial, go_on, only, runs, same_bits, summary

STRIKES = ("kill -9", "SIGTERM", "SIGSTOP, kill -9")
# Whether resumes have the ranks of the run, and the rows must have the same bits, or other numbers of ranks,
# which add gradients in another order.
RANKS = ("same ranks", "other ranks")
KINDS = tuple(f"{ranks}: {strike}" for ranks in RANKS for strike in STRIKES)

STEPS = 40
GLOBAL_BATCH = 12
# Relative differences that another order of additions may make: it makes some 2e-7, and other sequences make
# 4e-4 or more in the first step that reads them.
ROUNDING = 1e-5

WORDS = "the a of rain sun tree stone river walks sees finds gives old new green small house road night day".split()


def run(trial: Trial) -> None:
    """Runs a trial: a mixture, up to four strikes, and a resume after each."""
    ranks, strike = trial.kind.split(": ")
    write_mixture(trial)
    keys = division(trial)
    whole = trial.folder / "whole"
    whole.mkdir()
    for name in ("base.toml", "tiny.toml", "texts"):
        (whole / name).symlink_to(trial.folder / name)
    began = time.monotonic()
    trial.finish(["tiny.toml", "-q", *keys], cwd=whole)
    expected, took = only(runs(whole / "results")), time.monotonic() - began
    for _ in range(trial.random.randint(1, 4)):
        strike_at(trial, trial.start(next_command(trial, ranks, keys)), strike, took)
    trial.finish(next_command(trial, ranks, keys))
    found = only(runs(trial.folder / "results"))
    if ranks == "same ranks":
        same_bits(found, expected)
    else:
        same_losses(found, expected)


def next_command(trial: Trial, ranks: str, keys: list[str]) -> list[str]:
    """Returns the command that goes on, with the division of the run or another one."""
    begun = go_on(trial.folder, ["tiny.toml", *keys])
    is_over = begun[0] == "resume" and summary(only(runs(trial.folder / "results")))["status"] == "ok"
    if ranks == "same ranks" or is_over:
        return [*begun, "-q"]
    return [*(begun if begun[0] == "resume" else ["tiny.toml"]), "-q", *division(trial)]


def division(trial: Trial) -> list[str]:
    """Divides the global batch among ranks, micro-steps and sequences."""
    world = trial.random.choice((1, 2, 3, 4))
    local = trial.random.choice([local for local in (1, 2, 3, 4, 6, 12) if GLOBAL_BATCH % (local * world) == 0])
    accumulation = GLOBAL_BATCH // (local * world)
    return [
        f"parallelism.world_size={world}",
        f"training.local_batch_size={local}",
        f"training.accumulation={accumulation}",
        "parallelism.launcher=thread",
    ]


def write_mixture(trial: Trial) -> None:
    """Writes the texts and the recipe of a mixture."""
    random = trial.random
    (trial.folder / "texts").mkdir()
    (trial.folder / "tiny.toml").rename(trial.folder / "base.toml")
    names = [f"source-{number}" for number in range(random.randint(2, 12))]
    lines = [
        'extends = "base.toml"',
        f"[training]\nsteps = {STEPS}\nglobal_batch_size = {GLOBAL_BATCH}",
        f'[data]\npacking = "{random.choice(("stream", "best_fit"))}"',
    ]
    for name in names:
        path = f"texts/{name}.jsonl"
        with (trial.folder / path).open("w") as file:
            for _ in range(random.randint(40, 400)):
                text = f"{name} " + " ".join(random.choices(WORDS, k=random.randint(3, 60)))
                file.write(json.dumps({"text": text}) + "\n")
        lines.append(f'[data.sources.{name}]\npath = "{path}"\nweight = {0.9 ** random.randint(0, 60)!r}\nepochs = 1e5')
    for phase in sorted(random.sample((0.25, 0.5, 0.8), random.randint(0, 2))):
        chosen = random.sample(names, random.randint(1, len(names)))
        shares = ", ".join(f"{name} = {random.uniform(0.01, 1):.3f}" for name in chosen)
        lines.append(f"[[data.phases]]\nfrom = {phase}\nweights = {{ {shares} }}")
    (trial.folder / "tiny.toml").write_text("\n".join(lines) + "\n")


def same_losses(found: Path, expected: Path) -> None:
    """Checks that two runs have rows of the same steps, with the same losses but for rounding."""
    rows = [list(csv.DictReader((run / "metrics.csv").open())) for run in (found, expected)]
    if [row["step"] for row in rows[0]] != [row["step"] for row in rows[1]]:
        raise Failed("the rows are of other steps")
    for one, other in zip(*rows):
        for column in ("loss", "val_loss"):
            a, b = one[column], other[column]
            if bool(a) != bool(b) or a and not math.isclose(float(a), float(b), rel_tol=ROUNDING):
                raise Failed(f"step {one['step']}: {column} is {a}, and {b} without interruption")
