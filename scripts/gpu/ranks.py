"""Checks what must hold for any number of ranks."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from bench import Bench, Run, attempt, end, the_run
from exact import learned
from sizes import SIZES
from speed import synthetic

LAUNCHERS = ("thread", "process")
# Every number of ranks takes the same global batch. Dropout shows whether random draws depend only on the
# sequences.
SPLIT = """
[model]
dim = 128
n_layers = 3
n_heads = 4
n_kv_heads = 2
head_dim = 32
ffn_dim = 200
dropout = 0.1
[training]
seq_len = 96
global_batch_size = 48
steps = 20
dtype = "DTYPE"
[optimizer]
lr = 1e-3
[lr_scheduler]
warmup_steps = 4
[data]
train_tokens = 300_000
[validation]
interval = 10
steps = 2
[parallelism]
bucket_mib = 0.1
"""
# Steps after which a run is stopped and resumed with another number of ranks.
HANDED_ON = (500, 2000, 3500)
# Bounds on the relative distance from one rank: of the first loss, of any of the 20 losses, and of the final
# parameters.
BOUNDS = {"fp32": (1e-6, 1e-6, 1e-3), "bf16": (1e-6, 2e-3, 1e-3)}


def worlds(bench: Bench) -> list[int]:
    """Returns the numbers of ranks to try, which are at least two."""
    if bench.worlds:
        return bench.worlds
    devices = torch.cuda.device_count() if bench.device == "cuda" else 2
    return [world for world in (2, 4, 8) if world <= devices]


def launch(world: int, launcher: str = "thread") -> list[str]:
    """Returns the keys of a run with several ranks."""
    return [f"parallelism.world_size={world}", f"parallelism.launcher={launcher}"]


def ranks(bench: Bench) -> None:
    """Compares runs of each number of ranks with one rank and with each other."""
    for dtype in BOUNDS:
        recipe = bench.work / f"ranks-{dtype}.toml"
        recipe.write_text(SPLIT.replace("DTYPE", dtype))
        alone = bench.train(recipe, launch(1))
        for world in worlds(bench):
            attempt(
                bench,
                f"{dtype} {world} ranks",
                lambda r=recipe, d=dtype, w=world, a=alone: gates(bench, r, d, w, a),
            )


def stack(bench: Bench) -> None:
    """Resumes a run with other numbers of ranks, and trains with all features at once on all ranks."""
    for world in worlds(bench):
        attempt(bench, f"{world} ranks, resumed", lambda w=world: handed_on(bench, w))
    for world in worlds(bench)[-1:]:
        attempt(bench, f"v9-full-stack, {world} ranks", lambda w=world: full_stack(bench, w))


def starts(bench: Bench) -> None:
    """Measures the startup from an empty and a full cache, with a timeout that is shorter than the startup."""
    alone: dict[str, float] = {}
    for world in [1, *worlds(bench)]:
        cache = bench.work / f"cache-{world}"
        for what, most in (("cold", lambda one: 1.2 * one), ("warm", lambda one: one + 2.0)):
            keys = [*launch(world), *synthetic(SIZES["dim384"]), "training.steps=10", "parallelism.timeout_s=2"]
            run = bench.train("dim384", keys, cache=cache)
            took = {name: seconds for name, seconds in run.summary()["startup"].items() if seconds}
            parts = ", ".join(f"{name.removesuffix('_s')} {seconds:.2f} s" for name, seconds in took.items())
            total = sum(took.values())
            one = alone.setdefault(what, total)
            found = f"{total:.2f} s with timeout_s = 2: {parts}"
            bench.note(f"{world} ranks, {what}", found, world == 1 or total <= most(one), startup=took)


def handed_on(bench: Bench, world: int) -> None:
    """Stops a run three times and resumes it on one rank, on two unsharded ranks, and on all ranks, sharded.

    The run must see the same tokens as an uninterrupted one, follow its curve right after the first stop, and end with
    as low a mean loss. The losses of single steps differ by then: rounding differences grow over thousands of steps.
    """
    what = f"{world} ranks, resumed on 1, 2 and {world}"
    recipe = bench.work / "handed-on.toml"
    recipe.write_text(SPLIT.replace("DTYPE", "fp32").replace("steps = 20", f"steps = {HANDED_ON[-1] + 1000}"))
    first = launch(world) if bench.keys else [*launch(world), "parallelism.shard=optimizer"]
    whole = bench.train(recipe, first)
    command, results = bench.command(recipe, first)
    resume = [bench.xrun, "--results", str(results), "resume", "--quiet"]
    stages = [(1, "auto"), (2, "none"), (world, "optimizer")]
    stops = []
    for at, (ranks, shard) in zip(HANDED_ON, stages, strict=True):
        stops.append(interrupted(bench, command, results, at))
        keys = [f"parallelism.world_size={ranks}", f"training.local_batch_size={48 // ranks}", f"parallelism.shard={shard}"]
        command = [*resume, *keys]
    bench.call(command)
    run = the_run(results)
    same = run.column("tokens_seen") == whole.column("tokens_seen")
    pairs = list(zip(run.losses(), whole.losses(), strict=True))
    apart = [abs(a - b) / abs(b) for a, b in pairs]
    soon = max(apart[stops[0] : stops[0] + 20])
    ends = [sum(losses[-200:]) for losses in zip(*pairs, strict=True)]
    at_end = abs(ends[0] - ends[1]) / ends[1]
    found = f"stopped at steps {', '.join(map(str, stops))} of {len(pairs)}; the 20 losses after the first stop lie within "
    found += f"{soon:.1e} of {world} ranks', the mean of the last 200 within {at_end:.1e}"
    holds = same and soon <= 1e-5 and at_end <= 1e-2
    bench.note(what, found, holds, losses=pairs, stops=stops)


def interrupted(bench: Bench, command: list[str], results: Path, at: int) -> int:
    """Starts a run, tells it to stop once it has `at` rows, and returns the step at which it did."""
    process = bench.start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while sum(file.read_text().count("\n") for file in results.glob("*/*/metrics.csv")) < at:
            bench.left()
            if process.poll() is not None:
                raise RuntimeError("the run ended before it could be told to stop")
            time.sleep(0.002)
        process.terminate()
        process.wait(timeout=bench.left())
    finally:
        end(process)
    step = the_run(results).summary()["steps"]
    if not at - 1 <= step < at + 500:
        raise RuntimeError(f"the run was told to stop after {at} rows, but it stopped at step {step}")
    return step


def full_stack(bench: Bench, world: int) -> None:
    """Trains with grouped queries, dropout, accumulation and full recompute on all ranks."""
    keys = [*launch(world), "training.accumulation=2", f"training.global_batch_size={16 * world}"]
    learned(bench, "v9-full-stack", keys, f"v9-full-stack, {world} ranks")


def gates(bench: Bench, recipe: Path, dtype: str, world: int, alone: Run) -> None:
    """Compares several ranks with one rank, and the ways of exchanging gradients with each other.

    A run fails by itself if its ranks end with different parameters.
    """
    run = bench.train(recipe, launch(world))
    same = ["--algos-from", str(run.path)]
    losses = list(zip(run.losses(), alone.losses(), strict=True))
    apart = [abs(a - b) / abs(b) for a, b in losses]
    distance = parameters_apart(run, alone)
    first, any_step, parameters = BOUNDS[dtype]
    holds = apart[0] <= first and max(apart) <= any_step and distance <= parameters
    found = f"first loss {apart[0]:.1e}, any {max(apart):.1e}, parameters {distance:.1e} from one rank's"
    bench.note(f"{dtype} {world} ranks against one", found, holds, losses=losses, distance=distance)

    want = run.digest()
    # In a ring, the start of a bucket decides the order in which its ranks are added; for two ranks, the
    # order does not matter. With copies, ranks are always added in the order of their numbers.
    copies = "parallelism.transport=copies" in bench.keys
    rounding = world > 2 and not copies
    ways = {
        "once more": ([], False),
        "without overlap": (["parallelism.overlap=false"], False),
        "no graphs": (["engine.cuda_graphs=false"], False),
        "caching, no graphs": (["engine.placement=caching", "engine.cuda_graphs=false"], False),
        "naive, no graphs": (["engine.placement=naive", "engine.cuda_graphs=false"], False),
        "poisoned": (["engine.poison=true"], False),
        "a bucket per parameter": (["parallelism.bucket_mib=0"], rounding),
        "buckets of 25 MiB": (["parallelism.bucket_mib=25"], rounding),
        "one bucket": (["parallelism.bucket_mib=65536"], rounding),
        # The exchange by rows adds the embedding's gradient in a different order than the reduction of the
        # whole.
        "embedding reduced whole": (["parallelism.embedding_exchange=false"], True),
        "grouped": (["parallelism.reduction=grouped"], True),
        "accumulated": (["training.accumulation=2"], True),
        "processes": (launch(world, "process"), False),
    }
    if "parallelism.shard=optimizer" in bench.keys:
        # The grouped reduction gives every rank all sums, so it does not work with a sharded optimizer.
        del ways["grouped"]
    if not any(key.startswith(("parallelism.shard=", "parallelism.transport=")) for key in bench.keys):
        ways["whole optimizer"] = (["parallelism.shard=none"], rounding)
        for transport in ("nccl", "copies") if bench.device == "cuda" else ("auto",):
            keys = ["parallelism.shard=optimizer", f"parallelism.transport={transport}"]
            ways[f"sharded optimizer, {transport}"] = (keys, rounding)
    if copies:
        # Copies need tensors that stay where they are; these placements free tensors during a step.
        del ways["caching, no graphs"], ways["naive, no graphs"]
    for what, (keys, rounds) in ways.items():
        attempt(
            bench,
            f"{dtype} {world} ranks, {what}",
            lambda k=keys, r=rounds, w=what: way(bench, recipe, [*launch(world), *k], same, run, want, r, dtype, w),
        )


def way(
    bench: Bench,
    recipe: Path,
    keys: list[str],
    same: list[str],
    first: Run,
    want: dict[str, str],
    rounds: bool,
    dtype: str,
    what: str,
) -> None:
    """Checks one way of exchanging: equal bits, or, if the order of additions differs, the bounds in `BOUNDS`."""
    # xrun rejects a key that is given twice, so keep the last value of each.
    unique = {key.split("=")[0]: key for key in keys}
    run = bench.train(recipe, list(unique.values()), *same)
    name = f"{dtype} {unique['parallelism.world_size'].split('=')[1]} ranks, {what}"
    if rounds:
        apart = [abs(a - b) / abs(b) for a, b in zip(run.losses(), first.losses(), strict=True)]
        holds = apart[0] <= BOUNDS[dtype][0] and max(apart) <= BOUNDS[dtype][1]
        bench.note(name, f"first loss {apart[0]:.1e}, any {max(apart):.1e} apart", holds)
        return
    have = run.digest()
    other = [file for file in want if have[file] != want[file]]
    bench.note(name, f"{', '.join(other)} differ" if other else "the same bits", not other)


def parameters_apart(run: Run, other: Run) -> float:
    """Returns the distance between the parameters of two runs, relative to their norm."""
    squares = [0.0, 0.0]
    for (name, a), (_, b) in zip(tensors(run), tensors(other), strict=True):
        if a.shape != b.shape:
            raise ValueError(f"{name} has {a.numel()} elements in one run and {b.numel()} in the other")
        squares[0] += (a - b).double().square().sum().item()
        squares[1] += b.double().square().sum().item()
    return (squares[0] / squares[1]) ** 0.5


def tensors(run: Run) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the parameters of the last checkpoint as flat tensors, sorted by name."""
    last = max((run.path / "checkpoint").glob("step-*"))
    data = bytearray((last / "model.safetensors").read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for name in sorted(name for name in header if name != "__metadata__"):
        begin, end = header[name]["data_offsets"]
        numbers = torch.frombuffer(data, dtype=torch.float32, count=(end - begin) // 4, offset=8 + length + begin)
        yield name, numbers
