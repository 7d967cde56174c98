#!/usr/bin/env python3
"""Tests the verdicts of `xrun compare --on` end to end: one recipe against itself, and a known effect.

    cargo build --release
    python3 scripts/verdict_trials.py --xrun target/release/xrun --state target/verdict-trials.jsonl &
    python3 scripts/verdict_trials.py --state target/verdict-trials.jsonl --count      # counts so far; runs nothing

Every comparison is a whole `xrun compare` in a results folder of its own, with seeds that no other one has. Of 2000
comparisons of a recipe with itself under other seeds (8 pairs, two measures, every difference matters), at most 119 may
find anything *better* or *worse*: 100 are expected, and more than 119 are seen once in 40 times. Of 300 comparisons of
a raised learning rate, whose effect is measured first and whose pairs `--plan --pilot 8` plans for 90 %, at least 259
must find it.

A JSON line per comparison is appended to the state file. After an interruption, the same command continues; it runs
what has no line yet. Exits with 1 if a finished part misses its goal.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

RECIPE = """
[model]
dim = 16
n_layers = 1
n_heads = 2
ffn_dim = 32
[training]
seed = {seed}
seq_len = 16
local_batch_size = 4
steps = 30
[optimizer]
lr = 0.003
[lr_scheduler]
warmup_steps = 0
[data]
train_tokens = 4_000
validation_tokens = 400
[validation]
interval = 15
[generation]
samples = 0
[engine]
device = "cpu"
threads = 1
"""
# The two parts, the comparisons of each, and how many of them may and must find a difference.
SAME, EFFECT = "same", "effect"
GOALS = {SAME: (2000, 119), EFFECT: (300, 259)}
RAISED = "optimizer.lr=0.0038"
# Pairs that measure the effect before it is looked for. The end of the interval nearer to 0 is what is
# planned for, so that the true effect is hardly smaller than the planned one.
MEASURED = 256
# Distance of the candidate's seeds, so that pairs share nothing.
OTHER_SEEDS = 1000
# Seeds of one comparison. Pilot pairs take theirs a million above, so blocks of comparisons are further
# apart.
BLOCK = 10_000_000
lock = threading.Lock()


def run(xrun, folder, seed, *arguments):
    (folder / "tiny.toml").write_text(RECIPE.format(seed=seed))
    command = [xrun, "compare", "tiny.toml", *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def same(xrun, folder, at, _effect):
    seed = 1 + at * BLOCK
    on = ["--on", "val_loss,train_loss", "--min-effect", "0", "--seeds", "8"]
    found = run(xrun, folder, seed, f"training.seed={seed + OTHER_SEEDS}", *on)
    verdicts = [finding["verdict"] for finding in found["findings"]]
    return {"verdicts": verdicts, "found": any(verdict in ("better", "worse") for verdict in verdicts)}


def raised(seed):
    return [RAISED, f"training.seed={seed + OTHER_SEEDS}"]


def effect(xrun, folder, at, known):
    seed = 1 + (GOALS[SAME][0] + 1 + at) * BLOCK
    question = [*raised(seed), "--on", "val_loss", "--min-effect", str(abs(known))]
    planned = run(xrun, folder, seed, *question, "--seeds", "2", "--plan", "--pilot", "8")
    pairs = planned["plan"]["power"][0]["plan"]["pairs_to_see"]
    found = run(xrun, folder, seed, *question, "--seeds", str(pairs))
    verdict = found["findings"][0]["verdict"]
    return {"pairs": pairs, "verdict": verdict, "found": verdict == ("better" if known < 0 else "worse")}


def measure(xrun, folder):
    seed = 1 + (GOALS[SAME][0] + GOALS[EFFECT][0] + 2) * BLOCK
    found = run(xrun, folder, seed, *raised(seed), "--on", "val_loss", "--seeds", str(MEASURED))
    finding = found["findings"][0]
    ends = finding["interval"]["low"], finding["interval"]["high"]
    return {"effect": min(ends, key=abs), "deviation": finding["deviation"]}


def lines(state):
    text = state.read_text() if state.exists() else ""
    # A line that was cut off by a crash has no end, and its comparison runs again.
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def append(state, line):
    with lock, state.open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def cut_off(state):
    """Removes a last line without an end, so that the next one begins where it should."""
    if state.exists() and (text := state.read_text()) and not text.endswith("\n"):
        state.write_text(text[: text.rfind("\n") + 1])


def count(done, wanted):
    missed = False
    for part, (_, bound) in GOALS.items():
        own = [line for line in done if line["part"] == part]
        found = sum(line["found"] for line in own)
        verdicts = collections.Counter(line["verdict"] for line in own if "verdict" in line)
        details = f", verdicts {dict(verdicts)}" if verdicts else ""
        goal = f"at most {bound}" if part == SAME else f"at least {bound}"
        print(f"{part}: {found} of {len(own)} found a difference (goal: {goal} of {GOALS[part][0]}){details}")
        if len(own) >= GOALS[part][0] and wanted[part] >= GOALS[part][0]:
            missed |= found > bound if part == SAME else found < bound
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--xrun", default="target/release/xrun")
    parser.add_argument("--state", type=pathlib.Path, default=pathlib.Path("target/verdict-trials.jsonl"))
    parser.add_argument("--same", type=int, default=GOALS[SAME][0], help="comparisons of a recipe with itself")
    parser.add_argument("--effect", type=int, default=GOALS[EFFECT][0], help="comparisons of the known effect")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="comparisons at once")
    parser.add_argument("--count", action="store_true", help="only count the comparisons so far")
    args = parser.parse_args()
    wanted = {SAME: args.same, EFFECT: args.effect}
    if args.count:
        sys.exit(count(lines(args.state), wanted))
    xrun = pathlib.Path(args.xrun).absolute()
    args.state.parent.mkdir(parents=True, exist_ok=True)
    cut_off(args.state)
    done = lines(args.state)
    known = next((line for line in done if line["part"] == "measured"), None)
    if known is None and args.effect > 0:
        with tempfile.TemporaryDirectory() as folder:
            known = {"part": "measured", **measure(xrun, pathlib.Path(folder))}
        append(args.state, known)
        print(f"effect of {RAISED}: {known['effect']:.5f} nats or more, deviation {known['deviation']:.5f}", flush=True)
    present = {(line["part"], line.get("at")) for line in done}
    work = [(part, at) for part in (SAME, EFFECT) for at in range(wanted[part]) if (part, at) not in present]

    def one(part, at):
        with tempfile.TemporaryDirectory() as folder:
            ask = same if part == SAME else effect
            result = ask(xrun, pathlib.Path(folder), at, known and known["effect"])
        append(args.state, {"part": part, "at": at, **result})

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for future in concurrent.futures.as_completed([pool.submit(one, *item) for item in work]):
            if future.exception():
                pool.shutdown(cancel_futures=True)
                sys.exit(str(future.exception()))
    sys.exit(count(lines(args.state), wanted))


if __name__ == "__main__":
    main()
