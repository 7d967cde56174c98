#!/usr/bin/env python3
"""Asks the questions of recipes/questions: pilot pairs, a power plan, then a comparison with as many pairs as it asks for.

    python3 scripts/questions.py --xrun xrun --results results --corpus documentation/shards --small-corpus documentation/small

Pairs are those that see the smallest difference that matters in 90 % of cases (of a prediction of no difference: those that show
that there is none), at least `--least` and at most `--most`. Runs that are stored are used again, so the same command goes on.
"""

import argparse
import json
import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "recipes/questions"
QUESTIONS = ["qk-norm", "tied-embeddings", "no-warmup", "fp32", "batch-64", "qk-norm-high-rate", "qk-norm-low-rate", "dropout"]


def planned_pairs(options, name: str, common: list[str]) -> int:
    """Returns the number of pairs by the power plan, from pilot pairs that no verdict uses."""
    command = [options.xrun, "--results", options.results, "compare", str(FOLDER / f"{name}.toml"), *common,
               "--plan", "--pilot", str(options.pilot), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{name}: the plan failed with exit code {done.returncode}")
    stored = json.loads(done.stdout)
    equivalence = (stored["prediction"] or {}).get("text") == "no difference"
    plans = [measure["plan"] for measure in stored["plan"]["power"]]
    key = "pairs_to_show_equivalence" if equivalence else "pairs_to_see"
    # Blank: more than any number that is tried.
    pairs = [plan[key] if plan[key] is not None else options.most for plan in plans]
    print(f"{name}: the plan asks for {pairs} pairs ({key})", flush=True)
    return min(options.most, max(options.least, *pairs, 0))


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--xrun", default="xrun", help="the binary")
    arguments.add_argument("--results", default="results", help="folder of results")
    arguments.add_argument("--corpus", required=True, help="corpus of all questions but that of dropout")
    arguments.add_argument("--small-corpus", help="corpus of the question of dropout [default: the other one]")
    arguments.add_argument("--only", nargs="*", default=QUESTIONS, metavar="NAME", help="questions to ask")
    arguments.add_argument("--pilot", type=int, default=4, help="pilot pairs")
    arguments.add_argument("--least", type=int, default=8, help="pairs at least")
    arguments.add_argument("--most", type=int, default=16, help="pairs at most")
    options = arguments.parse_args()
    failed = 0
    for name in options.only:
        corpus = options.small_corpus if name == "dropout" and options.small_corpus else options.corpus
        common = ["--set", f"data.corpus={pathlib.Path(corpus).resolve()}"]
        pairs = planned_pairs(options, name, common)
        command = [options.xrun, "--results", options.results, "compare", str(FOLDER / f"{name}.toml"), *common,
                   "--seeds", str(pairs), "--pilot", str(options.pilot)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        print(f"== {name}\n{done.stdout}", flush=True)
        # 3 is a verdict, worse.
        failed += done.returncode not in (0, 3)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
