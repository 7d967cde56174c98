"""Measures tokens per second, alone and against PyTorch, and the time of ops."""

import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterable

from bench import SCRIPTS, Bench, OutOfTime, attempt, end
from sizes import COMPARED, OTHERS, SIZES, Size

# A short warm-up, so that a run with few steps is valid.
SHORT = "lr_scheduler.warmup_steps=2"


def ops(bench: Bench) -> None:
    """Measures where the time of a step goes."""
    for name in bench.sizes or COMPARED:
        attempt(bench, name, lambda name=name: profile(bench, name))


def profile(bench: Bench, name: str) -> None:
    """Writes the table of `xrun ops bench` for a size."""
    size = SIZES[name]
    keys = [f"engine.device={bench.device}", *synthetic(size)]
    (bench.out / f"ops-{name}.txt").write_text(bench.call([bench.xrun, "ops", "bench", size.recipe, *keys]))
    bench.note(name, f"ops-{name}.txt")

# Numbers of occupied multiprocessors, one column each. NCCL's collectives occupy 8 to 32.
HELD = (0, 1, 4, 8, 16, 24)


def held(bench: Bench) -> None:
    """Times matmuls of the backward while multiprocessors are occupied; writes a table per size."""
    if bench.device != "cuda":
        return
    for name in bench.sizes or COMPARED:
        attempt(bench, name, lambda name=name: held_products(bench, name))


def held_products(bench: Bench, name: str) -> None:
    """Times the matmuls of one size and their sum."""
    columns: list[dict[str, float]] = []
    for count in HELD:
        keys = [f"engine.device={bench.device}", *synthetic(SIZES[name]), "parallelism.world_size=1"]
        command = [bench.xrun, "ops", "bench", SIZES[name].recipe, *keys, "--held", str(count), "--steps", "5", "--json"]
        output = bench.call(command)
        ops = json.loads(output[output.index("{") :])["ops"]
        products = [op for op in ops if op["phase"] == "backward" and op["op"].startswith("linear")]
        columns.append({f"{op['op']} {op['shapes']}, {op['calls']} calls": op["ms"] for op in products})
    rows = [f"| ms per step | {' | '.join(map(str, HELD))} |", f"|---|{'--:|' * len(HELD)}"]
    sums = [sum(column.values()) for column in columns]
    for what in columns[0]:
        times = [column[what] for column in columns]
        rows.append(f"| {what} | {times[0]:.3f} | {' | '.join(f'{time / times[0]:.2f}' for time in times[1:])} |")
    rows.append(f"| all | {sums[0]:.3f} | {' | '.join(f'{time / sums[0]:.2f}' for time in sums[1:])} |")
    (bench.out / f"held-{name}.md").write_text("\n".join(rows) + "\n")
    ratios = ", ".join(f"{count}: {time / sums[0]:.2f}" for count, time in zip(HELD[1:], sums[1:], strict=True))
    bench.note(name, f"{sums[0]:.3f} ms; held {ratios}", held=dict(zip(map(str, HELD), sums, strict=True)))


def attention(bench: Bench) -> None:
    """Writes tables of attention against other libraries, and of their errors."""
    if bench.device != "cuda":
        return
    for name, options in {"attention": [], "attention-errors": ["--errors"]}.items():
        attempt(bench, name, lambda name=name, options=options: attention_table(bench, name, options))


def attention_table(bench: Bench, name: str, options: list[str]) -> None:
    """Writes one table of scripts/attention_peers.py, without the messages of libraries around it."""
    command = [sys.executable, "-B", str(SCRIPTS / "attention_peers.py"), "--xrun", bench.xrun, *options]
    lines = [line for line in bench.call(command).splitlines() if line.startswith("|") or ", torch " in line]
    (bench.out / f"{name}.md").write_text("\n".join(lines) + "\n")
    bench.note(name, f"{name}.md")


def synthetic(size: Size) -> list[str]:
    """Returns the keys of a training for which only speed matters."""
    keys = ["data.corpus=random", "data.tokenizer=gpt2", "data.train_tokens=4000000", "data.validation_tokens=32768"]
    keys += ["validation.interval=0", "validation.steps=1", "generation.samples=0", "checkpoint.keep=0"]
    return [*keys, SHORT, *size.keys]


def speed(bench: Bench, size: Size, keys: Iterable[str] = ()) -> dict[str, float]:
    """Trains with further keys and returns tokens per second, step time, MFU and memory."""
    run = bench.train(size.recipe, [*synthetic(size), *keys, f"training.steps={bench.steps}", "metrics.warmup=20"])
    summary = run.summary()
    if summary["status"] != "ok" or summary["tok_s"] is None:
        raise RuntimeError(f"the run is {summary['status']}: {summary['reason']}")
    found = {"tok_s": summary["tok_s"], "step_ms": summary["steady_state"]["step_ms"]["median"]}
    return {**found, "mfu_pct": summary["mfu_pct"], "memory_bytes": summary["memory"]["allocated_bytes"]}


def bench_all(bench: Bench) -> None:
    """Measures tokens per second of all sizes."""
    for name in bench.sizes or SIZES:
        attempt(bench, name, lambda name=name: measure(bench, name))


def measure(bench: Bench, name: str) -> None:
    """Adds the tokens per second of a size to the table."""
    found = speed(bench, SIZES[name])
    memory = f", {found['memory_bytes'] / 2**30:.2f} GiB" if found["memory_bytes"] else ""
    mfu = f", MFU {found['mfu_pct']:.1f} %" if found["mfu_pct"] else ""
    bench.note(name, f"{found['tok_s']:,.0f} tok/s, {found['step_ms']:.2f} ms{memory}{mfu}", **found)


def peer(bench: Bench) -> None:
    """Measures xrun and PyTorch in turns."""
    duels(bench, bench.sizes or COMPARED, 1 if bench.best else None)


def others(bench: Bench) -> None:
    """Checks that xrun is not slower than PyTorch's fastest mode at other shapes."""
    duels(bench, bench.sizes or OTHERS, 1, at_least=1.0)


def duels(bench: Bench, names: Iterable[str], modes: int | None, at_least: float | None = None) -> None:
    """Measures sizes against their first `modes` PyTorch modes, or against all of them."""
    for name in names:
        for mode in SIZES[name].modes[:modes]:
            what = f"{name} {' '.join(mode[1:])}"
            attempt(bench, what, lambda name=name, mode=mode: duel(bench, name, mode, at_least))


def duel(bench: Bench, name: str, mode: tuple[str, ...], at_least: float | None = None) -> None:
    """Measures one size against one PyTorch mode, in turns. PyTorch compiles once, then waits between its turns."""
    size = SIZES[name]
    command = [sys.executable, str(SCRIPTS / "torch_peer.py"), "--turns", "--device", bench.device, *size.peer, *mode]
    with bench.log().open("a") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        process = bench.start(command, text=True, **pipes)
        try:
            answer(bench, process)
            ours, theirs = [], []
            for _ in range(bench.turns):
                ours.append(speed(bench, size)["tok_s"])
                process.stdin.write("\n")
                process.stdin.flush()
                theirs.append(answer(bench, process)["tok_s"])
        finally:
            end(process)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ours) / statistics.median(theirs)
    bench.note(
        f"{name} {' '.join(mode[1:])}",
        f"{statistics.median(ours):,.0f} against {statistics.median(theirs):,.0f} tok/s: "
        f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        None if at_least is None else ratio >= at_least,
        ours=ours,
        theirs=theirs,
    )


def answer(bench: Bench, process: subprocess.Popen) -> dict:
    """Reads the next line from PyTorch's process; raises `OutOfTime` when the section's time is over."""
    previous = signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, bench.left())
    try:
        line = process.stdout.readline()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    if not line:
        raise RuntimeError(f"PyTorch's process ended with {process.wait()}")
    with bench.log().open("a") as log:
        log.write(line)
    found = json.loads(line)
    if "error" in found:
        raise RuntimeError(f"PyTorch's process failed: {found['error']}")
    return found


def out_of_time(_signal: int, _frame: object) -> None:
    """Handles the alarm: interrupts the wait."""
    raise OutOfTime
