#!/usr/bin/env python3
"""Checks and measures xrun on a machine with a GPU. Needs only the binary, python3 and torch.

    python3 scripts/gpu --xrun target/release/xrun --out dist                  # everything
    python3 scripts/gpu --xrun ./xrun --out dist --only bits,bench             # some of it
    python3 scripts/gpu --xrun ./xrun --out dist --only peer --sizes dim768    # one size
    python3 scripts/gpu --xrun ./xrun --out dist --only ranks --worlds 8       # only eight GPUs
    python3 scripts/gpu --xrun ./xrun --out dist --only ranks --set parallelism.shard=optimizer
    python3 scripts/gpu --xrun ./xrun --out dist --limit peer=900              # seconds that a section may take

    check      every case of every op on the GPU
    long       attention over 4,097 to 32,768 tokens and over more than 2³¹ elements: sampled rows against f64
    attention  attention alone against cuDNN and FlashAttention-2 (scripts/attention_peers.py), and PyTorch's errors
    bits       the same bits with other recompute, placement, poison, graphs and caches, and after kill -9 and resume
    ops        every op of a recipe against the card's own limits
    bench      tokens per second in the steady state
    peer       tokens per second against the same model in PyTorch (scripts/torch_peer.py), in turns
    others     like peer, at other heads, batches and lengths, where xrun must not be slower
    axes       what each part of a model costs in speed, in turns with the model without it
    optimizers the same bits of optimizers, averages, ramps, widths and formulas, however they are executed
    updates    the cost of Muon against AdamW, and of a formula against the built-in function
    step       loss, logits and gradients of a step against PyTorch from the same weights (scripts/torch_parity.py)
    parity     150 steps in bf16 and TF32 against fp32: the losses differ by at most 0.01
    start      seconds until kernels are ready, with and without a cache
    ways       placements, graphs and batching: speed, GPU load and allocations
    recompute  what recompute saves and costs
    memory     memory by recompute mode, against PyTorch's
    limits     what fits into 32 GiB, compared with the plan, and what happens when memory runs out
    recipes    two recipes for 300 steps, their text, and their export in transformers
    ranks      several GPUs: results against one GPU, and ways of exchanging against each other
    stack      several GPUs: resumes on one, two and all of them, and all features at once
    starts     several GPUs: seconds until training begins, from an empty cache and a full one
    scaling    several GPUs: speed, what the exchange costs, and independent runs at the same time
    parallel   several GPUs: PyTorch's DDP and FSDP2 at the same sizes
    held       matmuls of the backward while multiprocessors are occupied, as collectives occupy them
    launchers  several GPUs, or the CPU: torchrun, mpirun, a Slurm allocation, two network namespaces, where installed
    deaths     several GPUs: ranks that die, hang, run out of memory or are told to stop
    sanitize   every case of every op under compute-sanitizer

Sections for several GPUs do nothing on a machine with one. A section that runs out of time is cut off, and the next one
begins. --out receives `table.md`, `results.json`, a log per section, and in `kept` the runs worth keeping; all other
files are removed. Exits with 1 if a check fails.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import axes
import deaths
import exact
import launchers
import optimizers
import ranks
import scaling
import speed
import ways
from bench import Bench, OutOfTime, attempt
from sizes import SIZES

# Seconds that a section may take.
LIMITS = {
    "check": 300,
    "long": 400,
    "attention": 240,
    "bits": 240,
    "ops": 120,
    "bench": 400,
    "peer": 900,
    "others": 900,
    "axes": 900,
    "optimizers": 300,
    "updates": 300,
    "step": 240,
    "parity": 300,
    "start": 90,
    "ways": 120,
    "recompute": 180,
    "memory": 240,
    "limits": 240,
    "recipes": 240,
    "ranks": 600,
    "stack": 240,
    "starts": 240,
    "scaling": 900,
    "parallel": 900,
    "held": 240,
    "launchers": 300,
    "deaths": 300,
    "sanitize": 1200,
}
SECTIONS: dict[str, Callable[[Bench], None]] = {
    "check": exact.check,
    "long": exact.long_sequences,
    "attention": speed.attention,
    "bits": exact.bits,
    "ops": speed.ops,
    "held": speed.held,
    "bench": speed.bench_all,
    "peer": speed.peer,
    "others": speed.others,
    "axes": axes.axes,
    "optimizers": optimizers.optimizers,
    "updates": optimizers.updates,
    "step": exact.step,
    "parity": exact.parity,
    "start": ways.start,
    "ways": ways.ways,
    "recompute": ways.recompute,
    "memory": ways.memory,
    "limits": ways.limits,
    "recipes": exact.recipes,
    "ranks": ranks.ranks,
    "stack": ranks.stack,
    "starts": ranks.starts,
    "scaling": scaling.scaling,
    "parallel": scaling.data_parallel_peers,
    "launchers": launchers.launchers,
    "deaths": deaths.deaths,
    "sanitize": exact.sanitize,
}


def write(bench: Bench) -> str:
    """Writes the findings so far and returns the table."""
    rows = ["| section | what | found | |", "|---|---|---|---|"]
    marks = {None: "", True: "holds", False: "**does not hold**"}
    rows += [f"| {f.section} | {f.what} | {f.found.replace('|', '/')} | {marks[f.holds]} |" for f in bench.findings]
    table = "\n".join(rows) + "\n"
    (bench.out / "table.md").write_text(table)
    (bench.out / "results.json").write_text(json.dumps([asdict(f) for f in bench.findings], indent=1) + "\n")
    return table


def arguments() -> argparse.Namespace:
    """Parses the command line."""

    def listed(among: dict) -> Callable[[str], list[str]]:
        def parse(text: str) -> list[str]:
            unknown = [name for name in text.split(",") if name not in among]
            if unknown:
                raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; give some of {', '.join(among)}")
            return text.split(",")

        return parse

    def limit(text: str) -> tuple[str, float]:
        name, _, seconds = text.partition("=")
        if name not in LIMITS:
            raise argparse.ArgumentTypeError(f"unknown section: {name}; give one of {', '.join(LIMITS)}")
        return name, float(seconds)

    def worlds(text: str) -> list[int]:
        found = [int(word) for word in text.split(",")]
        if min(found) < 2:
            raise argparse.ArgumentTypeError("give at least 2 ranks: one rank exchanges nothing")
        return found

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", type=Path, required=True, help="the binary")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--only", type=listed(SECTIONS), default=list(SECTIONS), help="sections, comma-separated")
    parser.add_argument("--sizes", type=listed(SIZES), help="sizes for sections that time several, comma-separated")
    parser.add_argument(
        "--worlds", type=worlds, help="numbers of ranks, comma-separated [default: 2,4,8, up to the number of GPUs]"
    )
    parser.add_argument(
        "--set", dest="keys", action="append", default=[], metavar="KEY=VALUE", help="set a key in runs of several ranks"
    )
    parser.add_argument("--limit", type=limit, action="append", default=[], metavar="SECTION=SECONDS")
    parser.add_argument("--steps", type=int, default=200, help="steps of a timed training")
    parser.add_argument("--best", action="store_true", help="use only the PyTorch mode that was fastest in the past")
    parser.add_argument("--turns", type=int, default=3, help="turns of each comparison of speeds")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="use cpu to try this script out")
    return parser.parse_args()


def main() -> None:
    """Runs the sections and prints the table."""
    args = arguments()
    # Exit by an exception, so that `finally` blocks end the processes that were started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    limits = {**LIMITS, **dict(args.limit)}
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="xrun-gpu-") as work:
        bench = Bench(args, Path(work))
        for name in args.only:
            bench.section, bench.deadline = name, time.monotonic() + limits[name]
            bench.log().write_text("")
            try:
                attempt(bench, "the section", lambda name=name: SECTIONS[name](bench))
            except OutOfTime:
                bench.note("the section", f"not finished after {limits[name]:.0f} s", False)
            table = write(bench)
            for results in Path(work).glob("results-*"):
                shutil.rmtree(results)
    print("\n" + table)
    sys.exit(1 if any(finding.holds is False for finding in bench.findings) else 0)


if __name__ == "__main__":
    main()
