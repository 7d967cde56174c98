"""Several GPUs: what must hold for any number of ranks."""

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
# Both sides of a comparison take the same global batch; dropout shows whether draws follow the sequences.
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
# Steps after which a run goes on with other ranks.
HANDED_ON = (500, 2000, 3500)
# Against one rank: the first loss, any of the 20 losses (both relative), and the parameters after them.
BOUNDS = {"fp32": (1e-6, 1e-6, 1e-3), "bf16": (1e-6, 2e-3, 1e-3)}


def worlds(bench: Bench) -> list[int]:
    """Numbers of ranks to try here, from two."""
    if bench.worlds:
        return bench.worlds
    devices = torch.cuda.device_count() if bench.device == "cuda" else 2
    return [world for world in (2, 4, 8) if world <= devices]


def launch(world: int, launcher: str = "thread") -> list[str]:
    """Keys of a run of several ranks."""
    return [f"parallelism.world_size={world}", f"parallelism.launcher={launcher}"]


def ranks(bench: Bench) -> None:
    """What must hold, with every number of ranks."""
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
    """A run that goes on with other ranks, and everything at once on all of them."""
    for world in worlds(bench):
        attempt(bench, f"{world} ranks, resumed", lambda w=world: handed_on(bench, w))
    for world in worlds(bench)[-1:]:
        attempt(bench, f"v9-full-stack, {world} ranks", lambda w=world: full_stack(bench, w))


def starts(bench: Bench) -> None:
    """Seconds until training begins, from an empty cache and a full one, and that a short timeout ends no start."""
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
    """A run that is told to stop three times and goes on with other ranks: sharded, on one, on two that are whole, sharded.

    The same tokens as with all ranks from beginning to end, the same curve right after the first stop, and as good an end:
    thousands of steps later roundings have made other losses of single steps.
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
                raise RuntimeError("it ended before it could be told to stop")
            time.sleep(0.002)
        process.terminate()
        process.wait(timeout=bench.left())
    finally:
        end(process)
    step = the_run(results).summary()["steps"]
    if not at - 1 <= step < at + 500:
        raise RuntimeError(f"told to stop after {at} rows, it stopped at step {step}")
    return step


def full_stack(bench: Bench, world: int) -> None:
    """Grouped queries, dropout, accumulation and full recompute on all ranks."""
    keys = [*launch(world), "training.accumulation=2", f"training.global_batch_size={16 * world}"]
    learned(bench, "v9-full-stack", keys, f"v9-full-stack, {world} ranks")


def gates(bench: Bench, recipe: Path, dtype: str, world: int, alone: Run) -> None:
    """Ranks against one rank, and the ways of exchanging against each other.

    A run whose ranks end with other parameters than each other fails by itself.
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
    # Where a bucket begins decides in which order a ring adds its ranks: of two, there is one order. Copies are added in that
    # of ranks.
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
        # Rows of the embedding's gradient are added in another order than sums over them.
        "embedding reduced whole": (["parallelism.embedding_exchange=false"], True),
        "grouped": (["parallelism.reduction=grouped"], True),
        "accumulated": (["training.accumulation=2"], True),
        "processes": (launch(world, "process"), False),
    }
    if "parallelism.shard=optimizer" in bench.keys:
        # Every rank would get all sums.
        del ways["grouped"]
    if not any(key.startswith(("parallelism.shard=", "parallelism.transport=")) for key in bench.keys):
        ways["whole optimizer"] = (["parallelism.shard=none"], rounding)
        for transport in ("nccl", "copies") if bench.device == "cuda" else ("auto",):
            keys = ["parallelism.shard=optimizer", f"parallelism.transport={transport}"]
            ways[f"sharded optimizer, {transport}"] = (keys, rounding)
    if copies:
        # Tensors would be freed during a step.
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
    """One way of exchanging: the same bits, or, where the order of additions differs, the bounds against one rank."""
    # A key that is named twice is wrong; the later one is meant.
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
    """How far the parameters of two runs are apart, relative to their norm."""
    squares = [0.0, 0.0]
    for (name, a), (_, b) in zip(tensors(run), tensors(other), strict=True):
        if a.shape != b.shape:
            raise ValueError(f"{name} has {a.numel()} and {b.numel()} numbers")
        squares[0] += (a - b).double().square().sum().item()
        squares[1] += b.double().square().sum().item()
    return (squares[0] / squares[1]) ** 0.5


def tensors(run: Run) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters of the last checkpoint, flat, by name."""
    last = max((run.path / "checkpoint").glob("step-*"))
    data = bytearray((last / "model.safetensors").read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for name in sorted(name for name in header if name != "__metadata__"):
        begin, end = header[name]["data_offsets"]
        numbers = torch.frombuffer(data, dtype=torch.float32, count=(end - begin) // 4, offset=8 + length + begin)
        yield name, numbers
