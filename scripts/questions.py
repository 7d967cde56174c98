#!/usr/bin/env python3
"""Answers the questions in recipes/questions: runs pilot pairs, plans the power, then compares.

    python3 scripts/questions.py --xrun xrun --results results --corpus documentation/shards --small-corpus documentation/small

The number of pairs is between `--least` and `--most`. It is chosen to detect the smallest difference that matters in
90 % of cases; if the prediction is "no difference", it is chosen to show equivalence. Stored runs are reused, so after
an interruption the same command continues.
"""

import argparse
import json
import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "recipes/questions"
QUESTIONS = ["qk-norm", "tied-embeddings", "no-warmup", "fp32", "batch-64", "qk-norm-high-rate", "qk-norm-low-rate", "dropout"]


def planned_pairs(options, name: str, common: list[str]) -> int:
    """Returns the number of pairs from a power plan. The plan's pilot pairs are not used in the verdict."""
    command = [options.xrun, "--results", options.results, "compare", str(FOLDER / f"{name}.toml"), *common,
               "--plan", "--pilot", str(options.pilot), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{name}: the plan failed with exit code {done.returncode}")
    stored = json.loads(done.stdout)
    equivalence = (stored["prediction"] or {}).get("text") == "no difference"
    plans = [measure["plan"] for measure in stored["plan"]["power"]]
    key = "pairs_to_show_equivalence" if equivalence else "pairs_to_see"
    # None means that no number of pairs that was tried is enough.
    pairs = [plan[key] if plan[key] is not None else options.most for plan in plans]
    print(f"{name}: the plan asks for {pairs} pairs ({key})", flush=True)
    return min(options.most, max(options.least, *pairs, 0))


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--xrun", default="xrun", help="the binary")
    arguments.add_argument("--results", default="results", help="the results folder")
    arguments.add_argument("--corpus", required=True, help="the corpus of all questions except dropout")
    arguments.add_argument("--small-corpus", help="the corpus of the dropout question [default: --corpus]")
    arguments.add_argument("--only", nargs="*", default=QUESTIONS, metavar="NAME", help="questions to ask")
    arguments.add_argument("--pilot", type=int, default=4, help="pilot pairs")
    arguments.add_argument("--least", type=int, default=8, help="minimum number of pairs")
    arguments.add_argument("--most", type=int, default=16, help="maximum number of pairs")
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
        # Exit code 3 is the verdict "worse", not a failure.
        failed += done.returncode not in (0, 3)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
