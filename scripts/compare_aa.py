#!/usr/bin/env python3
"""Tests the verdicts of `xrun compare` on a recipe against itself and on a known slowdown.

    cargo build --release
    python3 scripts/compare_aa.py --xrun target/release/xrun --comparisons 20 --slowdowns 5

Every comparison is a whole `xrun compare` with fresh processes. In A/A comparisons, the recipe runs against itself, and
at most 3 of 20 may find it faster or slower. In slowdowns, `activation_checkpoint.mode=full` computes every block a
second time, which costs about a quarter of the speed and changes no bit of the curve; all must find it slower. Prints a
JSON line per comparison, then the counts, and exits with 1 if they miss these goals. Other work on the machine makes
verdicts inconclusive; the lines say how busy it was.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

RECIPE = """
[model]
dim = 96
n_layers = 2
n_heads = 3
ffn_dim = 256
[training]
seq_len = 64
local_batch_size = 4
steps = {steps}
[data]
train_tokens = 200_000
validation_tokens = 1_000
[activation_checkpoint]
mode = "none"
[engine]
device = "cpu"
threads = 1
"""


def compare(xrun, folder, after, repeats):
    command = [xrun, "compare", "aa.toml", *after, "--repeats", str(repeats), "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    found = json.loads(done.stdout)
    speed, curves = found["findings"]
    change = {end: round(value, 4) for end, value in (speed["interval"] or {}).items()}
    line = {"after": after[0], "verdict": speed["verdict"], "change": change, "curves": curves["verdict"]}
    print(json.dumps(line | {"contended": found["contended"], "notes": found["notes"]}), flush=True)
    return speed["verdict"], curves["verdict"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--xrun", default="target/release/xrun")
    parser.add_argument("--comparisons", type=int, default=20)
    parser.add_argument("--slowdowns", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    xrun = str(pathlib.Path(given.xrun).resolve())
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "aa.toml").write_text(RECIPE.format(steps=given.steps))
        same = [compare(xrun, folder, ["aa.toml"], given.repeats) for _ in range(given.comparisons)]
        full = ["activation_checkpoint.mode=full"]
        slow = [compare(xrun, folder, full, given.repeats) for _ in range(given.slowdowns)]
    counts = [collections.Counter(speed for speed, _ in side) for side in (same, slow)]
    wrong = counts[0]["better"] + counts[0]["worse"]
    gates = all(curves == "same_bits" for _, curves in same + slow)
    print(json.dumps({"a_a": counts[0], "slowdown": counts[1], "all_same_bits": gates}))
    allowed = 3 * given.comparisons / 20
    sys.exit(not (wrong <= allowed and counts[1]["worse"] == given.slowdowns and gates))


if __name__ == "__main__":
    main()
