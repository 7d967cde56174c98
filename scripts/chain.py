#!/usr/bin/env python3
"""Compares the recipes of a chain: each with its predecessor, and the last with the first.

    python3 scripts/chain.py recipes/from-gpt2 --xrun xrun --results results --set data.corpus=documentation/shards --seeds 4
    python3 scripts/chain.py recipes/from-gpt2 --only ends --name from-gpt2-base --set model.dim=768 …   # only the first with the last
    python3 scripts/chain.py recipes/from-gpt2 --only 1-5 …     # some steps, for example one GPU's share of two

A chain is a folder of recipes whose names begin with their number. Every recipe but the first states its hypothesis and
prediction in `[compare]`, so both are older than its runs. Stored runs are reused: a recipe in the middle is trained
once for two comparisons, and after an interruption the same command continues. `xrun keep comparisons/NAME-1` and so on
keep the comparisons for a `chain` block in a page.
"""

import argparse
import pathlib
import subprocess
import sys
import tomllib


def numbered(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the recipes of a chain sorted by number. The numbers must be 0, 1, 2, …"""
    recipes = sorted(folder.glob("[0-9]*-*.toml"), key=lambda file: int(file.name.split("-")[0]))
    numbers = [int(file.name.split("-")[0]) for file in recipes]
    if numbers != list(range(len(recipes))) or len(recipes) < 2:
        raise SystemExit(f"{folder}: a chain is at least two recipes numbered 0, 1, 2, …; found {numbers}")
    return recipes


def asked(recipe: pathlib.Path) -> list[str]:
    """Returns the hypothesis and prediction of a step as options of `xrun compare`."""
    compare = tomllib.loads(recipe.read_text()).get("compare", {})
    missing = [key for key in ("hypothesis", "predicts") if key not in compare]
    if missing:
        raise SystemExit(f"{recipe} has no compare.{missing[0]}: every recipe but the first must state one")
    return ["--hypothesis", compare["hypothesis"], "--predicts", compare["predicts"]]


def chosen(only: list[str] | None, steps: int) -> set[str]:
    """Expands `only` into names of steps; None means all of them."""
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
            raise SystemExit(f"--only {word}: give a step from 1 to {steps}, a range such as 1-{steps}, or ends")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chain", type=pathlib.Path, help="the folder of recipes")
    parser.add_argument("--xrun", default="xrun", help="the binary")
    parser.add_argument("--results", default="results", help="the results folder")
    parser.add_argument("--name", help="prefix of the comparisons' names, before -1, -2, … and -ends [default: the folder's name]")
    parser.add_argument("--seeds", default="4", help="pairs per comparison")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="steps to compare, such as 3 or 1-5; ends compares the last recipe with the first")
    parser.add_argument("--predicts", help="prediction for the last recipe against the first")
    parser.add_argument("--set", dest="keys", action="append", default=[], metavar="KEY=VALUE", help="set a key in all recipes")
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

    # All comparisons are planned before the first run, so that a wrong recipe late in the chain wastes no
    # runs.
    unplanned = [question[2] for question in asked_now if compare(question, "--plan").returncode != 0]
    if unplanned:
        raise SystemExit(f"nothing was run, because these steps cannot be compared: {', '.join(unplanned)}")
    failed = 0
    for question in asked_now:
        baseline, candidate, step, _ = question
        called = f"{name}-{step}"
        done = compare(question)
        print(f"== {called}: {baseline.stem} → {candidate.stem}\n{done.stdout}", flush=True)
        # Exit code 3 is the verdict "worse", not a failure.
        failed += done.returncode not in (0, 3)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
