"""Measures several GPUs: the cost of the exchange, independent runs at once, and PyTorch's data parallelism."""

import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from bench import SCRIPTS, Bench, Run, attempt, last_words, the_run
from ranks import launch, worlds
from sizes import SIZES
from speed import synthetic

# The sizes to train and their sequence lengths. Each GPU gets `TOKENS` tokens per step.
TRAINED = {"dim384": 256, "dim768": 256, "dim1024": 256, "base-160m": 1024, "qwen3-0.6b-shape": 2048}
TOKENS = 8192
SHARDED = "parallelism.shard=optimizer"
COPIES = "parallelism.transport=copies"
# Ways that are measured once each. No exchange and sharded copies by threads are compared in turns.
WAYS = {
    "whole, NCCL": ["parallelism.shard=none"],
    "sharded, NCCL": [SHARDED, "parallelism.transport=nccl"],
    "sharded, copies, processes": [SHARDED, COPIES, "parallelism.launcher=process"],
}
PEERS = {
    "DDP": ["--parallel", "ddp"],
    "DDP, bf16 sums": ["--parallel", "ddp", "--reduce", "bf16"],
    "FSDP2": ["--parallel", "fsdp2"],
    "FSDP2, bf16 sums": ["--parallel", "fsdp2", "--reduce", "bf16"],
}
COLUMNS = ("communication_ms", "exposed_communication_ms", "sm_clock_mhz", "power_w")


def scaling(bench: Bench) -> None:
    """Measures each size on each number of GPUs."""
    names = [name for name in bench.sizes or TRAINED if name in TRAINED]
    for world in worlds(bench):
        for name in names:
            attempt(bench, f"{name} × {world}", lambda n=name, w=world: comparison(bench, n, w))
            attempt(bench, f"{name} × {world}", lambda n=name, w=world: ours(bench, n, w))
            attempt(bench, f"{name} × {world}, alone", lambda n=name, w=world: independent(bench, n, w))


def data_parallel_peers(bench: Bench) -> None:
    """Measures PyTorch at the same sizes, after compiling all of its modes in parallel into PyTorch's cache."""
    names = [name for name in bench.sizes or TRAINED if name in TRAINED]
    for world in worlds(bench):
        cases = [(name, peer) for name in names for peer in PEERS if not peer.endswith("sums")]
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda case: bench.outcome(peer_command(bench, *case, world, steps=1)), cases))
        for name in names:
            for peer in PEERS:
                attempt(bench, f"{name} × {world}, {peer}", lambda n=name, p=peer, w=world: theirs(bench, n, p, w))


def keys_of(name: str) -> list[str]:
    """Returns the keys of a training for which only speed matters."""
    keys = [key for key in synthetic(SIZES[name]) if not key.startswith("training.local_batch_size")]
    return [*keys, f"training.local_batch_size={TOKENS // TRAINED[name]}", "metrics.warmup=20"]


def ours(bench: Bench, name: str, world: int) -> None:
    """Measures the other ways of exchanging, one run each."""
    for way, keys in WAYS.items():
        # xrun rejects a key that is given twice, so keep the last value of each.
        named = {key.split("=")[0]: key for key in [*launch(world), *keys, *keys_of(name)]}
        try:
            run = bench.train(SIZES[name].recipe, [*named.values(), f"training.steps={bench.steps}"])
        except RuntimeError as error:
            bench.note(f"{name} × {world}, {way}", str(error), False)
            continue
        row = figures(run)
        bench.note(f"{name} × {world}, {way}", in_words(row), world=world, size=name, way=way, **row)


def figures(run: Run) -> dict[str, float | None]:
    """Returns the speed and memory of a run, and medians over its steady state."""
    summary = run.summary()
    if summary["status"] != "ok" or summary["tok_s"] is None:
        raise RuntimeError(f"the run is {summary['status']}: {summary['reason']}")
    row = {"tok_s": summary["tok_s"], "step_ms": summary["steady_state"]["step_ms"]["median"]}
    row["allocated_bytes"] = summary["memory"]["allocated_bytes"]
    row["planned_bytes"] = summary["memory"]["planned_bytes"]
    for column in COLUMNS:
        values = run.timings(column)
        row[column] = statistics.median(values) if values else None
    return row


def in_words(row: dict[str, float | None]) -> str:
    """Formats the figures of a run for the table."""
    words = [f"{row['tok_s']:,.0f} tok/s, {row['step_ms']:.3f} ms"]
    formats = ("{:.3f} ms exchange", "{:.3f} ms exposed", "{:.0f} MHz", "{:.0f} W")
    words += [text.format(row[column]) for column, text in zip(COLUMNS, formats, strict=True) if row[column] is not None]
    return ", ".join(words)


def comparison(bench: Bench, name: str, world: int) -> None:
    """Compares no exchange with sharded copies, in turns, and keeps the comparison."""
    results = bench.work / f"exchange-{name}-{world}"
    sets = [*keys_of(name), f"parallelism.world_size={world}", f"engine.device={bench.device}", "training.steps=150"]
    sets += ["engine.communication=off"]
    change = ["engine.communication=on", SHARDED, COPIES]
    command = [bench.xrun, "--results", str(results), "compare", SIZES[name].recipe, *change]
    command += [word for key in sets for word in ("--set", key)]
    command += ["--repeats", "3", "--name", f"exchange-{name}-{world}", "--predicts", "tok_s -4..+4%"]
    command += ["--hypothesis", "copies hold no multiprocessor, and a rank updates only its part of the parameters"]
    code, output = bench.outcome(command)
    # Exit code 3 is a verdict, not a failure.
    if code not in (0, 3):
        raise RuntimeError(f"exit {code}: {last_words(output)}")
    (file,) = results.glob("comparisons/*/*/experiment.json")
    bench.call([bench.xrun, "--results", str(results), "keep", str(file.parent), "--to", str(bench.out / "kept")])
    found = json.loads(file.read_text())
    for arm, way in zip(found["arms"], ("no exchange", "sharded, copies"), strict=True):
        row = {column: arm["measured"].get(column) for column in ("tok_s", "step_ms", *COLUMNS)}
        bench.note(f"{name} × {world}, {way}", in_words(row), world=world, size=name, way=way, **row)
    speed = next(finding for finding in found["findings"] if finding["measure"] == "tok_s")
    ratio = speed["interval"] and {end: 1 + speed["interval"][end] for end in ("estimate", "low", "high")}
    text = f"{ratio['estimate']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f}) tok/s" if ratio else "no ratio"
    bench.note(f"{name} × {world}, in turns", f"{text}, {speed['verdict']}", ratio=ratio)


def independent(bench: Bench, name: str, world: int) -> None:
    """Trains one run on each GPU at the same time."""
    processes = []
    for gpu in range(world):
        keys = [*keys_of(name), "parallelism.world_size=1", f"engine.devices=[{gpu}]", f"training.steps={bench.steps}"]
        command, results = bench.command(SIZES[name].recipe, keys)
        processes.append((bench.start(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT), results))
    rows = []
    for process, results in processes:
        process.wait(timeout=bench.left())
        rows.append(figures(the_run(results)))
    total = sum(row["tok_s"] for row in rows)
    bench.note(f"{name} × {world}, independent runs", f"{total:,.0f} tok/s", world=world, size=name, tok_s=total)


def peer_command(bench: Bench, name: str, peer: str, world: int, steps: int) -> list[str]:
    """Returns the command that trains with one of PyTorch's ways."""
    options = [word for word in SIZES[name].peer if word != "--batch" and not word.isdecimal() or word == str(TRAINED[name])]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(world), "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "localhost:0", os.path.relpath(SCRIPTS / "torch_peer.py"), *options]
    command += ["--batch", str(TOKENS // TRAINED[name]), "--mode", "compile", "--pad", *PEERS[peer]]
    return [*command, "--warmup", "12" if steps > 1 else "2", "--steps", str(steps), "--device", bench.device]


def theirs(bench: Bench, name: str, peer: str, world: int) -> None:
    """Measures one of PyTorch's ways."""
    code, output = bench.outcome(peer_command(bench, name, peer, world, steps=60))
    rows = [json.loads(line) for line in output.splitlines() if line.startswith('{"model"')]
    if code != 0 or not rows or "error" in rows[-1]:
        raise RuntimeError(f"exit {code}: {rows[-1]['error'] if rows else last_words(output)}")
    row = rows[-1]
    text = f"{row['tok_s']:,} tok/s, {row['step_ms']:.2f} ms, {row['peak_mib']:,} MiB"
    bench.note(f"{name} × {world}, {peer}", text, world=world, size=name, peer=peer, tok_s=row["tok_s"])
