#!/usr/bin/env python3
"""Compares the recipes of a chain: each with the one before it, and the last with the first.

    python3 scripts/chain.py recipes/from-gpt2 --xrun xrun --results results --set data.corpus=documentation/shards --seeds 4
    python3 scripts/chain.py recipes/from-gpt2 --only ends --name from-gpt2-base --set model.dim=768 …   # the first and the last alone
    python3 scripts/chain.py recipes/from-gpt2 --only 1-5 …     # some steps, such as those of one of two GPUs

A chain is a folder of recipes whose names begin with their number. Hypothesis and prediction of a step are those of its recipe's `[compare]`, so they
are older than its runs. Runs that are stored are used again: every recipe but the ends is trained once for two comparisons, and the
same command goes on after an interruption. `xrun keep comparisons/NAME-1` and so on keep them for a block of the kind `chain`.
"""

import argparse
import pathlib
import subprocess
import sys
import tomllib


def numbered(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the recipes of a chain in the order of their numbers, which must be 0, 1, 2, …"""
    recipes = sorted(folder.glob("[0-9]*-*.toml"), key=lambda file: int(file.name.split("-")[0]))
    numbers = [int(file.name.split("-")[0]) for file in recipes]
    if numbers != list(range(len(recipes))) or len(recipes) < 2:
        raise SystemExit(f"{folder}: recipes have to be numbered 0, 1, 2, … and at least two; found {numbers}")
    return recipes


def asked(recipe: pathlib.Path) -> list[str]:
    """Returns hypothesis and prediction of a step as options."""
    compare = tomllib.loads(recipe.read_text()).get("compare", {})
    missing = [key for key in ("hypothesis", "predicts") if key not in compare]
    if missing:
        raise SystemExit(f"{recipe}: no compare.{missing[0]}; every step but the first predicts")
    return ["--hypothesis", compare["hypothesis"], "--predicts", compare["predicts"]]


def chosen(only: list[str] | None, steps: int) -> set[str]:
    """Returns the names of the steps that `only` names; all without it."""
    if only is None:
        return {*map(str, range(1, steps + 1)), "ends"}
    found = set()
    for word in only:
        first, _, last = word.partition("-")
        if word == "ends":
            found.add(word)
        elif first.isdecimal() and (last or first).isdecimal() and 1 <= int(first) <= int(last or first) <= steps:
            found.update(map(str, range(int(first), int(last or first) + 1)))
        else:
            raise SystemExit(f"--only {word}: steps are 1 to {steps}, ranges such as 1-{steps}, or ends")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chain", type=pathlib.Path, help="folder of the recipes")
    parser.add_argument("--xrun", default="xrun", help="the binary")
    parser.add_argument("--results", default="results", help="folder of results")
    parser.add_argument("--name", help="what comparisons are called, with -1, -2, … and -ends [default: that of the folder]")
    parser.add_argument("--seeds", default="4", help="pairs of each comparison")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="steps, such as 3 or 1-5, and ends for the last recipe with the first")
    parser.add_argument("--predicts", help="prediction of the last against the first")
    parser.add_argument("--set", dest="keys", action="append", default=[], metavar="KEY=VALUE", help="a key of all recipes")
    options = parser.parse_args()
    recipes = numbered(options.chain)
    name = options.name or options.chain.resolve().name
    predicts = ["--predicts", options.predicts] if options.predicts else []
    steps = enumerate(zip(recipes, recipes[1:], strict=False), 1)
    questions = [(a, b, str(at), asked(b)) for at, (a, b) in steps] + [(recipes[0], recipes[-1], "ends", predicts)]
    wanted = chosen(options.only, len(recipes) - 1)
    keys = [word for key in options.keys for word in ("--set", key)]
    asked_now = [question for question in questions if question[2] in wanted]

    def compare(question: tuple[pathlib.Path, pathlib.Path, str, list[str]], *more: str) -> subprocess.CompletedProcess:
        baseline, candidate, step, said = question
        command = [options.xrun, "--results", options.results, "compare", str(baseline), str(candidate), "--on", "val_loss"]
        command += ["--seeds", options.seeds, "--name", f"{name}-{step}", *said, *keys, *more]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True)

    # Every question is planned before the first run, so that a wrong recipe at the end costs no runs.
    unplanned = [question[2] for question in asked_now if compare(question, "--plan").returncode != 0]
    if unplanned:
        raise SystemExit(f"nothing was run: steps {', '.join(unplanned)} cannot be compared")
    failed = 0
    for question in asked_now:
        baseline, candidate, step, _ = question
        called = f"{name}-{step}"
        done = compare(question)
        print(f"== {called}: {baseline.stem} → {candidate.stem}\n{done.stdout}", flush=True)
        # 3 is a verdict, worse.
        failed += done.returncode not in (0, 3)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
