"""Measures ways to execute a run: placement, graphs, batching, recompute, memory limits, startup."""

import json
import shutil
import statistics
import subprocess
import sys

from bench import SCRIPTS, Bench, attempt, end, the_run
from sizes import SIZES
from speed import synthetic

# How transient memory is allocated, how kernels are launched, and whether sequences are batched; each with
# the number of steps to time.
WAYS = {
    "arena, graph": ([], 200),
    "arena": (["engine.cuda_graphs=false"], 200),
    "caching": (["engine.placement=caching", "engine.cuda_graphs=false"], 200),
    "naive": (["engine.placement=naive", "engine.cuda_graphs=false"], 200),
    "looped, arena, graph": (["engine.batching=looped"], 60),
    "looped, arena": (["engine.batching=looped", "engine.cuda_graphs=false"], 60),
    "looped, naive": (["engine.batching=looped", "engine.placement=naive", "engine.cuda_graphs=false"], 60),
}
LIMIT = 32 << 30
# Recipes, each with keys that decide whether it fits into LIMIT.
FITS = [
    *(
        ("v8-dim1024", [f"activation_checkpoint.mode={mode}", f"training.local_batch_size={batch}"])
        for batch in (160, 32)
        for mode in ("full", "none")
    ),
    *(
        ("dim768", [f"training.dtype={dtype}", f"training.local_batch_size={batch}"])
        for dtype in ("bf16", "fp32")
        for batch in (32, 16)
    ),
]
# Allocates all of the GPU's memory except the given bytes, prints "held", and waits.
HOLD = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


def ways(bench: Bench) -> None:
    """Measures placements, graphs and batching at a size small enough for launch overhead to matter."""
    for what, (keys, steps) in WAYS.items():
        attempt(bench, what, lambda w=what, k=keys, s=steps: way(bench, w, k, s))


def way(bench: Bench, what: str, keys: list[str], steps: int) -> None:
    """Measures speed, GPU load and allocations of one way."""
    settings = [*synthetic(SIZES["dim384"]), f"training.steps={steps}", "metrics.warmup=20", *keys]
    run = bench.train("dim384", settings)
    summary = run.summary()
    load, asked = run.timings("gpu_util_pct"), run.timings("driver_allocations")
    reserved = run.timings("gpu_reserved_mib")
    found = [f"{summary['tok_s']:,.0f} tok/s"]
    found += [f"GPU busy {statistics.median(load):.0f} %"] if load else []
    found += [f"{statistics.median(asked):.0f} driver allocations per step"] if asked else []
    found += [f"{max(reserved):,.0f} MiB reserved"] if reserved else []
    bench.note(what, ", ".join(found), tok_s=summary["tok_s"], load=load[-1:], allocations=asked[-1:])
    bench.keep(run)


def recompute(bench: Bench) -> None:
    """Measures what recompute saves and costs."""
    for name in ("dim768", "v8-dim1024"):
        attempt(bench, name, lambda name=name: modes(bench, name))


def modes(bench: Bench, name: str) -> None:
    """Measures a recipe in every recompute mode."""
    size = SIZES[name.removeprefix("v8-")]
    speeds, transients = {}, {}
    for mode in ("none", "emitted", "selective", "full"):
        keys = [f"activation_checkpoint.mode={mode}", f"training.steps={bench.steps}", "metrics.warmup=20"]
        run = bench.train(name, [*synthetic(size), *keys])
        summary = run.summary()
        speeds[mode] = summary["tok_s"]
        # Every mode has weights, gradients, both moments (4 bytes each) and the bf16 copy (2 bytes).
        state = summary["parameters"] * 18
        transients[mode] = summary["memory"]["allocated_bytes"] - state
    for mode in ("emitted", "selective", "full"):
        speed, memory = speeds[mode] / speeds["none"], transients[mode] / transients["none"]
        text = f"{speeds[mode]:,.0f} against {speeds['none']:,.0f} tok/s: {speed:.3f}; transient memory {memory:.3f}"
        good = speed >= 0.78 and memory <= 0.25 if mode == "full" else None
        bench.note(f"{name} {mode}", text, good, speeds=speeds, transients=transients)


def memory(bench: Bench) -> None:
    """Compares the memory of each recompute mode with PyTorch's peak of allocated tensors without CUDA graphs."""
    if bench.device != "cuda":
        return
    for name in bench.sizes or ("dim768", "dim1024", "base-160m"):
        attempt(bench, name, lambda name=name: beside_pytorch(bench, name))


def beside_pytorch(bench: Bench, name: str) -> None:
    """Checks one size: `selective` takes at most 0.85 of PyTorch's memory, `emitted` and `auto` at most all of it."""
    size = SIZES[name]
    peer = [sys.executable, str(SCRIPTS / "torch_peer.py"), "--device", bench.device, "--steps", "5", "--warmup", "3"]
    said = bench.call([*peer, *size.peer, "--mode", "compile", "--pad"])
    theirs = next(json.loads(line) for line in reversed(said.splitlines()) if line.startswith("{"))["peak_mib"]
    for mode, most in (("selective", 0.85), ("emitted", 1.0), ("auto", 1.0)):
        keys = [*synthetic(size), "training.steps=10", f"activation_checkpoint.mode={mode}"]
        found = bench.train(size.recipe, keys).summary()["memory"]
        ours, planned = found["allocated_bytes"], found["planned_bytes"]
        share = ours / 2**20 / theirs
        text = f"{ours / 2**20:,.0f} MiB, {share:.2f} of PyTorch's {theirs:,} MiB"
        text += "" if ours == planned else f", but planned {planned / 2**20:,.0f} MiB"
        bench.note(f"{name} {mode}", text, ours == planned and share <= most, ours=ours, theirs=theirs)


def limits(bench: Bench) -> None:
    """Checks that a run that fits takes exactly the planned memory, and that one that does not is refused at once."""
    attempt(bench, "memory that another process holds", lambda: held(bench))
    for recipe, keys in FITS:
        what = " ".join([recipe, *(key.split("=")[1] for key in keys)])
        attempt(bench, what, lambda r=recipe, k=keys, w=what: fits(bench, r, k, w))


def fits(bench: Bench, recipe: str, keys: list[str], what: str) -> None:
    """Runs a recipe under the limit; if it is refused, checks that it takes more without the limit."""
    small = [*synthetic(SIZES["dim768"]), "training.steps=10", *keys]
    command, results = bench.command(recipe, [*small, f"engine.memory_limit_gib={LIMIT >> 30}"])
    code, output = bench.outcome(command)
    if code == 0:
        run = the_run(results)
        memory = run.summary()["memory"]
        found, planned = memory["allocated_bytes"], memory["planned_bytes"]
        bench.note(what, f"fits: {found:,} bytes, planned {planned:,}", found == planned <= LIMIT)
    elif "does not fit: the plan needs" in output:
        run = bench.train(recipe, small)
        found = run.summary()["memory"]["allocated_bytes"]
        bench.note(what, f"refused; without the limit it takes {found:,} bytes", found > LIMIT)
    else:
        raise RuntimeError(output.strip().splitlines()[-1])


def held(bench: Bench) -> None:
    """Checks that a run whose memory another process holds ends as `oom` and says what it planned."""
    process = bench.start([sys.executable, "-c", HOLD, str(4 << 30)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        command, results = bench.command("dim768", [*synthetic(SIZES["dim768"]), "training.steps=10"])
        code, _ = bench.outcome(command)
    finally:
        end(process)
    run = the_run(results)
    reason = str(run.summary()["reason"])
    said = run.summary()["status"] == "oom" and "The plan is" in reason and "local_batch_size" in reason
    bench.note("memory that another process holds", f"exit {code}, {run.summary()['status']}: {reason}", said)


def start(bench: Bench) -> None:
    """Measures the time until kernels are ready, from an empty cache and from a full one."""
    shutil.rmtree(bench.cache, ignore_errors=True)
    for what, most in (("from an empty cache", 20.0), ("once more", 1.0)):
        run = bench.train("dim768", [*synthetic(SIZES["dim768"]), "training.steps=10"])
        took = run.summary()["startup"]
        kernels = took["kernels_s"] or 0.0
        parts = ", ".join(f"{name.removesuffix('_s')} {seconds:.2f} s" for name, seconds in took.items() if seconds)
        bench.note(what, parts, kernels < most, startup=took)
