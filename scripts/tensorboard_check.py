#!/usr/bin/env python3
"""Reads xrun's event files with TensorBoard's own reader and compares every value with the run's own files.

    tensorboard_check.py [--xrun PATH] [RUN...]

Without a RUN, trains a small run on the CPU, kills it and resumes it. Then exports it as it is, with values that are not
finite, and as a kept run. Each RUN is a run's folder with `tensorboard/` in it. Exits with 1 if a value, a step or a
text differs. If the package `tensorboard` is not installed, the check is skipped.
"""

import argparse
import csv
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as missing:
    print(f"SKIPPED: {missing}; `pip install tensorboard` brings TensorBoard's reader", file=sys.stderr)
    sys.exit(0)

SMALL = ["quickstart", "engine.device=cpu", "training.steps=60", "model.dim=32", "model.n_heads=2", "model.n_layers=1",
         "model.ffn_dim=64", "training.seq_len=32", "training.local_batch_size=4", "data.train_tokens=20_000",
         "data.validation_tokens=600", "validation.interval=6", "generation.interval=20", "generation.samples=2",
         "generation.tokens=8", "generation.prompt=\"<script>\"", "checkpoint.interval=10", "metrics.tensorboard=true",
         "metrics.plots=false"]
PHASES = {"warmup": "timing", "train": "timing"}


def single(value):
    """Rounds to fp32, the format of TensorBoard's scalars."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def rows(run, name):
    with open(run / name, newline="") as file:
        return list(csv.DictReader(file))


def expected(run):
    """Returns scalars as {tag: [(step, value)]} and texts as {tag: [(step, [text])]} from a run's files."""
    scalars, texts = {}, {}
    for name in ("metrics.csv", "timing.csv"):
        for row in rows(run, name):
            step, phase = int(row.pop("step")), row.pop("phase", None)
            group = "metrics" if phase is None else PHASES.get(phase, f"timing_{phase}")
            for column, value in row.items():
                tag = f"{group}/{column}"
                if value == "":
                    continue
                if column == "throttle":
                    texts.setdefault(tag, []).append((step, [value]))
                else:
                    scalars.setdefault(tag, []).append((step, single(float(value))))
    for sample in json.loads((run / "summary.json").read_text())["samples"]:
        of_samples = texts.setdefault("samples", [])
        if not of_samples or of_samples[-1][0] != sample["step"]:
            of_samples.append((sample["step"], []))
        of_samples[-1][1].append(sample["prompt"] + sample["text"])
    return scalars, texts


def read(folder):
    """Returns the same from a folder of event files, as TensorBoard reads it."""
    everything = {kind: 0 for kind in ("scalars", "tensors", "images", "audio", "histograms", "compressedHistograms")}
    found = EventAccumulator(str(folder), size_guidance=everything)
    found.Reload()
    tags = found.Tags()
    scalars = {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in tags["scalars"]}
    strings = lambda tensor: [text.decode() for text in tensor.string_val]
    texts = {tag: [(event.step, strings(event.tensor_proto)) for event in found.Tensors(tag)] for tag in tags["tensors"]}
    return scalars, texts


def same(a, b):
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


def compare(run, folder, what):
    """Prints the differences and returns their number."""
    problems, count, not_finite = [], 0, 0
    for kind, wanted, got in zip(("scalars", "texts"), expected(run), read(folder)):
        for tag in sorted(wanted.keys() | got.keys()):
            a, b = wanted.get(tag, []), got.get(tag, [])
            count += len(a)
            not_finite += sum(isinstance(v, float) and not math.isfinite(v) for _, v in a)
            if len(a) != len(b):
                problems.append(f"{kind} {tag}: {len(a)} in the rows, {len(b)} in the events")
            differ = [(x, y) for x, y in zip(a, b) if x[0] != y[0] or not same(x[1], y[1])]
            problems += [f"{kind} {tag}: {x} in the rows, {y} in the events" for x, y in differ[:3]]
    for problem in problems:
        print(f"{what}: {problem}", file=sys.stderr)
    print(f"{what}: {count:,} values, {not_finite} of them not finite, {len(problems)} differences")
    return len(problems)


def only(pattern, folder):
    found = list(folder.glob(pattern))
    assert len(found) == 1, found
    return found[0]


def train(xrun, place):
    """Trains a small run, kills it between two checkpoints, and resumes it."""
    arguments = ["training.steps=2000" if a.startswith("training.steps") else a for a in SMALL]
    run = subprocess.Popen([xrun, *arguments, "--quiet"], cwd=place, start_new_session=True)
    deadline = time.time() + 60
    while time.time() < deadline and run.poll() is None:
        saved = list(place.glob("results/quickstart/*/checkpoint/step-*"))
        folder = list(place.glob("results/quickstart/*"))
        if saved and len(rows(folder[0], "metrics.csv")) % 10 > 4:
            break
        time.sleep(0.002)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    folder = only("results/quickstart/*", place)
    print(f"killed after {len(rows(folder, 'metrics.csv'))} rows of metrics.csv")
    # Resume for at least a hundred steps, up to a multiple of a hundred, instead of to the end.
    until = 100 * (len(rows(folder, "metrics.csv")) // 100 + 2)
    subprocess.run([xrun, "resume", folder, "--until", str(until), "--quiet"], cwd=place, check=True)
    return folder


def check_own(xrun):
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        folder = train(xrun, place)
        failed = compare(folder, only("tensorboard", folder), "killed and resumed")

        export = lambda run, to: subprocess.run([xrun, "runs", "export", f"--tensorboard={to}", run], cwd=place,
                                                check=True, stdout=subprocess.DEVNULL)
        export(folder, "exported")
        failed += compare(folder, only("exported/quickstart/*", place), "exported")

        # Values that a diverging run writes, in the columns loss and grad_norm.
        hurt = place / "results/hurt" / folder.name
        shutil.copytree(folder, hurt)
        text = (hurt / "metrics.csv").read_text().splitlines()
        for line, (column, value) in {5: (2, "NaN"), 6: (2, "inf"), 7: (5, "-inf"), 8: (5, "NaN")}.items():
            fields = text[line].split(",")
            fields[column] = value
            text[line] = ",".join(fields)
        (hurt / "metrics.csv").write_text("\n".join(text) + "\n")
        export(hurt, "exported")
        failed += compare(hurt, only("exported/hurt/*", place), "not finite")

        subprocess.run([xrun, *SMALL, "--quiet"], cwd=place, check=True)
        newest = max(place.glob("results/quickstart/*"), key=lambda run: run.stat().st_mtime)
        failed += compare(newest, newest / "tensorboard", "to its end")
        subprocess.run([xrun, "keep", newest], cwd=place, check=True, stdout=subprocess.DEVNULL)
        export(only("results/kept/quickstart/*", place), "kept")
        failed += compare(newest, only("kept/quickstart/*", place), "kept")
        return failed


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--xrun", default="xrun", help="the binary [default: xrun in PATH]")
    arguments.add_argument("runs", metavar="RUN", nargs="*", type=Path)
    args = arguments.parse_args()
    if args.runs:
        failed = sum(compare(run, run / "tensorboard", str(run)) for run in args.runs)
    else:
        binary = shutil.which(args.xrun)
        if binary is None:
            sys.exit(f"there is no binary {args.xrun}: give its path with --xrun")
        failed = check_own(Path(binary).resolve())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
