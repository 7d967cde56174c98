#!/usr/bin/env python3
"""Checks and measures xrun on a machine with a GPU, with nothing but the binary, python3 and torch.

    gpu.py --xrun target/release/xrun --out found                  # everything
    gpu.py --xrun ./xrun --out found --only bits,bench             # some of it
    gpu.py --xrun ./xrun --out found --only peer --sizes dim768    # one size
    gpu.py --xrun ./xrun --out found --limit peer=900              # seconds that a section may take

    check    every case of every op on the GPU
    bits     what must not change a bit does not: recompute, placement, poison, graphs, caches, kill -9 and resume
    ops      every op of a recipe beside the card's own limits
    bench    tokens per second in the steady state
    peer     the same against the same model in PyTorch (scripts/torch_peer.py), in turns
    step     loss, logits and gradients of a step against PyTorch from the same weights (scripts/torch_parity.py)
    parity   150 steps in bf16 against fp32: the losses differ by at most 0.01

A section that runs out of its time is cut off, and the next one begins. --out receives `table.md`, `results.json` and a
log per section; everything else is removed. Exits with 1 when something does not hold.
"""

import argparse
import contextlib
import csv
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent
LIMITS = {"check": 300, "bits": 240, "ops": 120, "bench": 400, "peer": 900, "step": 240, "parity": 300}


class OutOfTime(Exception):
    """A section used up its seconds."""


@dataclass
class Finding:
    """A row of the table. `holds` is None for what is only measured."""

    section: str
    what: str
    found: str
    holds: bool | None = None
    numbers: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Size:
    """A training to time: a built-in recipe with keys changed, and the options that give PyTorch the same work."""

    recipe: str
    keys: tuple[str, ...]
    peer: tuple[str, ...]
    # What PyTorch is run with, best first by earlier measurements; none where it is not compared.
    modes: tuple[tuple[str, ...], ...] = ()


PADDED = ("--mode", "compile", "--pad")
GRAPHS = ("--mode", "graphs", "--pad")
SIZES = {
    "dim384": Size("dim384", (), ("--model", "dim384"), (GRAPHS, PADDED)),
    "dim768": Size("dim768", (), ("--model", "dim768"), (GRAPHS, PADDED)),
    "dim1024": Size("v8-dim1024", (), ("--model", "dim1024"), (GRAPHS, PADDED)),
    "dim768-batch64": Size(
        "dim768", ("training.local_batch_size=64",), ("--model", "dim768", "--batch", "64"), (PADDED,)
    ),
    "dim768-heads64-seq512": Size(
        "dim768",
        ("model.n_heads=12", "model.head_dim=64", "training.seq_len=512", "training.local_batch_size=24"),
        ("--model", "768,18,12,12,64,2048", "--seq", "512", "--batch", "24"),
        (PADDED,),
    ),
    "dim1024-grouped-seq1024": Size(
        "v8-dim1024",
        (
            "model.n_heads=8",
            "model.n_kv_heads=4",
            "model.head_dim=128",
            "model.ffn_dim=2816",
            "training.seq_len=1024",
            "training.local_batch_size=16",
        ),
        ("--model", "1024,18,8,4,128,2816", "--seq", "1024", "--batch", "16"),
        (PADDED,),
    ),
    "dim1024-recompute": Size(
        "v8-dim1024", ("activation_checkpoint.mode=full",), ("--model", "dim1024", "--recompute"), (PADDED,)
    ),
    "dim768-tf32": Size("dim768", ("training.dtype=tf32",), ("--model", "dim768", "--precision", "tf32"), (PADDED,)),
    "dim768-fp32": Size(
        "dim768",
        ("training.dtype=fp32", "training.local_batch_size=16"),
        ("--model", "dim768", "--precision", "fp32", "--batch", "16"),
        (PADDED,),
    ),
}
# Compared unless --sizes says otherwise: compiling the peer takes the longest.
COMPARED = ("dim384", "dim768", "dim1024")

# FFN, vocabulary and batch are no multiples of what kernels like; dropout shows whether draws follow positions.
SMALL = """
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
local_batch_size = 5
steps = 300
dtype = "DTYPE"
[lr_scheduler]
warmup_steps = 20
[data]
train_tokens = 300_000
[validation]
interval = 100
steps = 2
"""


@dataclass
class Run:
    """A finished run's folder."""

    path: Path

    def summary(self) -> dict:
        """What `summary.json` holds."""
        return json.loads((self.path / "summary.json").read_text())

    def losses(self) -> list[float]:
        """The training loss of every step."""
        with (self.path / "metrics.csv").open() as file:
            return [float(row["loss"]) for row in csv.DictReader(file)]

    def digest(self) -> dict[str, str]:
        """Hashes of what must not depend on how it was computed: metrics, and the last checkpoint's tensors."""
        last = sorted((self.path / "checkpoint").glob("step-*"))[-1]
        files = [self.path / "metrics.csv", last / "model.safetensors", last / "optimizer.safetensors"]
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


class Bench:
    """The binary, where it runs, and what was found so far."""

    def __init__(self, args: argparse.Namespace, work: Path):
        self.xrun: str = str(args.xrun.resolve())
        self.device: str = args.device
        self.out: Path = args.out
        self.steps: int = args.steps
        self.turns: int = args.turns
        self.best: bool = args.best
        self.sizes: list[str] | None = args.sizes
        self.work = work
        self.cache = work / "cache"
        self.findings: list[Finding] = []
        self.section = ""
        self.deadline = 0.0
        self.folders = 0

    def note(self, what: str, found: str, holds: bool | None = None, **numbers: object) -> None:
        """Adds a row to the table, and shows it."""
        self.findings.append(Finding(self.section, what, found, holds, numbers))
        print(f"{self.section:<7} {what}: {found}{verdict(holds)}", flush=True)

    def left(self) -> float:
        """Seconds that the section has left."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise OutOfTime
        return seconds

    def log(self) -> Path:
        """The section's log."""
        return self.out / f"{self.section}.log"

    def start(self, command: list[str], cache: Path | None = None, **options: object) -> subprocess.Popen:
        """Starts a command in a session of its own, so that it can be ended with all its children."""
        env = {**os.environ, "XRUN_CACHE": str(cache or self.cache)}
        return subprocess.Popen(command, env=env, start_new_session=True, **options)

    def call(self, command: list[str], cache: Path | None = None, fails: bool = False) -> str:
        """Runs a command to its end; returns its output, which goes to the log too. With `fails` it may exit with 1."""
        process = self.start(command, cache, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            output, _ = process.communicate(timeout=self.left())
        except subprocess.TimeoutExpired:
            end(process)
            raise OutOfTime from None
        with self.log().open("a") as log:
            log.write(f"$ {' '.join(command)}\n{output}\n")
        if process.returncode not in ((0, 1) if fails else (0,)):
            lines = output.strip().splitlines() or [""]
            why = next((line for line in lines if line.startswith("error")), lines[-1])
            raise RuntimeError(f"exit {process.returncode}: {why[:300]}")
        return output

    def command(self, recipe: str | Path, keys: list[str], *options: str) -> tuple[list[str], Path]:
        """A command that trains into a results folder of its own, and that folder."""
        self.folders += 1
        results = self.work / f"results-{self.folders}"
        keys = [f"engine.device={self.device}", *keys]
        return [self.xrun, "--results", str(results), "run", str(recipe), *keys, *options, "--quiet"], results

    def train(self, recipe: str | Path, keys: list[str], *options: str, cache: Path | None = None) -> Run:
        """Trains, and returns the run."""
        command, results = self.command(recipe, keys, *options)
        self.call(command, cache)
        return the_run(results)


def the_run(results: Path) -> Run:
    """The only run of a results folder."""
    (summary,) = results.glob("*/*/summary.json")
    return Run(summary.parent)


def end(process: subprocess.Popen) -> None:
    """Kills a process that `start` started, with its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def verdict(holds: bool | None) -> str:
    """How a row of the table ends."""
    return {None: "", True: ": holds", False: ": DOES NOT HOLD"}[holds]


def check(bench: Bench) -> None:
    """Every case of every op."""
    output = bench.call([bench.xrun, "ops", "check", "--device", bench.device])
    bench.note("cases of all ops", output.strip().splitlines()[-1], True)


def bits(bench: Bench) -> None:
    """The same curve and the same tensors, however they are computed."""
    for dtype in ("bf16", "fp32"):
        recipe = bench.work / f"bits-{dtype}.toml"
        recipe.write_text(SMALL.replace("DTYPE", dtype))
        first = bench.train(recipe, [])
        want = first.digest()
        # The fastest algorithms of products are found by timing, so other runs take them over.
        same = ["--algos-from", str(first.path)] if bench.device == "cuda" else []
        bench.note(f"{dtype} first run", f"loss {first.losses()[-1]:.4f}", first.summary()["status"] == "ok")

        def compare(what: str, run: Run, dtype: str = dtype, want: dict[str, str] = want) -> None:
            have = run.digest()
            other = [name for name in want if have[name] != want[name]]
            bench.note(f"{dtype} {what}", f"{', '.join(other)} differ" if other else "the same bits", not other)

        ways = {
            "once more": [],
            "no recompute": ["activation_checkpoint.mode=none"],
            "full recompute": ["activation_checkpoint.mode=full"],
            "dead memory poisoned": ["engine.poison=true"],
            "caching, poisoned": ["engine.placement=caching", "engine.poison=true"],
            "naive, poisoned": ["engine.placement=naive", "engine.poison=true"],
        }
        if bench.device == "cuda":
            ways["no graphs"] = ["engine.cuda_graphs=false"]
            ways["no graphs, full recompute"] = ["engine.cuda_graphs=false", "activation_checkpoint.mode=full"]
        for what, keys in ways.items():
            compare(what, bench.train(recipe, keys, *same))
        compare("caches emptied", bench.train(recipe, [], *same, cache=bench.work / f"cache-{dtype}"))
        compare("killed and resumed", killed_and_resumed(bench, recipe, same))


def killed_and_resumed(bench: Bench, recipe: Path, options: list[str]) -> Run:
    """A run that was killed between two of its checkpoints and went on."""
    for _ in range(5):
        command, results = bench.command(recipe, ["checkpoint.interval=25"], *options)
        process = bench.start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            bench.left()
            # Beyond the first checkpoints, well before the end.
            rows = [len(file.read_text().splitlines()) for file in results.glob("*/*/metrics.csv")]
            if any(count > 80 for count in rows):
                break
            time.sleep(0.002)
        alive = process.poll() is None
        end(process)
        if alive:
            bench.call([bench.xrun, "--results", str(results), "resume", "--quiet"])
            return the_run(results)
    raise RuntimeError("every run ended before it could be killed")


def ops(bench: Bench) -> None:
    """Where the time of a step goes."""
    for name in bench.sizes or COMPARED:
        attempt(bench, name, lambda name=name: profile(bench, name))


def profile(bench: Bench, name: str) -> None:
    """The table of a size, into a file."""
    size = SIZES[name]
    keys = [f"engine.device={bench.device}", *synthetic(size)]
    (bench.out / f"ops-{name}.txt").write_text(bench.call([bench.xrun, "ops", "bench", size.recipe, *keys]))
    bench.note(name, f"ops-{name}.txt")


def synthetic(size: Size) -> list[str]:
    """Keys for a training whose speed alone matters."""
    keys = ["data.corpus=random", "data.tokenizer=gpt2", "data.train_tokens=4000000", "data.validation_tokens=32768"]
    return [*keys, "validation.interval=0", "validation.steps=1", "generation.samples=0", *size.keys]


def speed(bench: Bench, size: Size) -> dict[str, float]:
    """Tokens per second, step time and memory of a training."""
    run = bench.train(size.recipe, [*synthetic(size), f"training.steps={bench.steps}", "metrics.warmup=20"])
    summary = run.summary()
    if summary["status"] != "ok" or summary["tok_s"] is None:
        raise RuntimeError(f"the run is {summary['status']}: {summary['reason']}")
    # A checkpoint is twelve bytes per parameter.
    shutil.rmtree(run.path / "checkpoint", ignore_errors=True)
    found = {"tok_s": summary["tok_s"], "step_ms": summary["steady_state"]["step_ms"]["median"]}
    return {**found, "mfu_pct": summary["mfu_pct"], "memory_bytes": summary["memory"]["allocated_bytes"]}


def speed_of(bench: Bench) -> None:
    """Tokens per second of all sizes."""
    for name in bench.sizes or SIZES:
        attempt(bench, name, lambda name=name: measure(bench, name))


def measure(bench: Bench, name: str) -> None:
    """Tokens per second of a size, into the table."""
    found = speed(bench, SIZES[name])
    memory = f", {found['memory_bytes'] / 2**30:.2f} GiB" if found["memory_bytes"] else ""
    mfu = f", MFU {found['mfu_pct']:.1f} %" if found["mfu_pct"] else ""
    bench.note(name, f"{found['tok_s']:,.0f} tok/s, {found['step_ms']:.2f} ms{memory}{mfu}", **found)


def peer(bench: Bench) -> None:
    """xrun and PyTorch in turns."""
    for name in bench.sizes or COMPARED:
        for mode in SIZES[name].modes[: 1 if bench.best else None]:
            attempt(bench, f"{name} {' '.join(mode[1:])}", lambda name=name, mode=mode: duel(bench, name, mode))


def duel(bench: Bench, name: str, mode: tuple[str, ...]) -> None:
    """Turns of one size against one mode of PyTorch, which compiles once and then waits for its turns."""
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
        ours=ours,
        theirs=theirs,
    )


def answer(bench: Bench, process: subprocess.Popen) -> dict:
    """The next line of the peer. Cut off with the section's time."""
    previous = signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, bench.left())
    try:
        line = process.stdout.readline()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    if not line:
        raise RuntimeError(f"the peer ended with {process.wait()}")
    with bench.log().open("a") as log:
        log.write(line)
    found = json.loads(line)
    if "error" in found:
        raise RuntimeError(f"the peer is {found['error']}")
    return found


def out_of_time(_signal: int, _frame: object) -> None:
    """Ends a wait."""
    raise OutOfTime


def step(bench: Bench) -> None:
    """One step of a small and of a real model, in the ways it can be computed, tensor by tensor."""
    small = bench.work / "step.toml"
    small.write_text(SMALL.replace("DTYPE", "bf16"))
    ways = ([], ["engine.fused=false"], ["engine.attention=unfused"], ["activation_checkpoint.mode=full"])
    trials = [(small, dtype, [*way, "model.dropout=0"]) for dtype in ("fp32", "bf16") for way in ways]
    trials += [("dim768", dtype, ["data.train_tokens=500000"]) for dtype in ("fp32", "bf16")]
    for recipe, dtype, keys in trials:
        name = " ".join([Path(recipe).stem, dtype, *keys[:-1]])
        attempt(bench, name, lambda r=recipe, d=dtype, k=keys, n=name: against_torch(bench, r, d, k, n))


def against_torch(bench: Bench, recipe: str | Path, dtype: str, keys: list[str], name: str) -> None:
    """The tensors of a step, beside PyTorch's."""
    file = bench.work / "step.safetensors"
    file.unlink(missing_ok=True)
    keys = [f"engine.device={bench.device}", f"training.dtype={dtype}", *keys]
    bench.call([bench.xrun, "inspect", str(recipe), *keys, "--to", str(file)])
    script = [sys.executable, str(SCRIPTS / "torch_parity.py"), str(file), "--dtype", dtype, "--device", bench.device]
    output = bench.call(script, fails=True)
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if not found:
        raise RuntimeError(output.strip().splitlines()[-1])
    beyond = [row["tensor"] for row in found if not row["holds"]]
    share = statistics.median(row["ours"] / row["theirs"] for row in found[1:] if row["theirs"] > 0)
    text = f"loss {found[0]['ours']:.1e} from f64, tensors {share:.2f} of PyTorch's distance (median)"
    bench.note(name, text + (f"; too far: {', '.join(beyond)}" if beyond else ""), not beyond, tensors=found)


def parity(bench: Bench) -> None:
    """bf16 learns as fp32 does."""
    losses = {}
    for dtype in ("fp32", "tf32", "bf16"):
        keys = [f"training.dtype={dtype}", "training.steps=150", "data.train_tokens=2000000", "validation.interval=0"]
        run = bench.train("dim768", [*keys, "lr_scheduler.warmup_steps=20"])
        shutil.rmtree(run.path / "checkpoint", ignore_errors=True)
        losses[dtype] = run.losses()
        if dtype == "fp32":
            continue
        wide, narrow = losses["fp32"], losses[dtype]
        last = abs(narrow[-1] - wide[-1])
        worst = max(abs(a - b) for a, b in zip(narrow, wide, strict=True))
        found = (
            f"loss {narrow[-1]:.4f} and {wide[-1]:.4f} at step 150: {last:.1e} apart, on the way at most {worst:.1e}"
        )
        bench.note(f"dim768 {dtype} against fp32", found, last <= 0.01, losses=losses)


def attempt(bench: Bench, what: str, action: Callable[[], None]) -> None:
    """Does one thing of a section; when it fails, the others still come."""
    try:
        action()
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        bench.note(what, f"{type(error).__name__}: {error}", False)


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "check": check,
    "bits": bits,
    "ops": ops,
    "bench": speed_of,
    "peer": peer,
    "step": step,
    "parity": parity,
}


def write(bench: Bench) -> str:
    """Writes what was found so far; returns the table."""
    rows = ["| section | what | found | |", "|---|---|---|---|"]
    marks = {None: "", True: "holds", False: "**does not hold**"}
    rows += [f"| {f.section} | {f.what} | {f.found.replace('|', '/')} | {marks[f.holds]} |" for f in bench.findings]
    table = "\n".join(rows) + "\n"
    (bench.out / "table.md").write_text(table)
    (bench.out / "results.json").write_text(json.dumps([asdict(f) for f in bench.findings], indent=1) + "\n")
    return table


def arguments() -> argparse.Namespace:
    """The command line."""

    def listed(among: dict) -> Callable[[str], list[str]]:
        def parse(text: str) -> list[str]:
            unknown = [name for name in text.split(",") if name not in among]
            if unknown:
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}; there are {', '.join(among)}")
            return text.split(",")

        return parse

    def limit(text: str) -> tuple[str, float]:
        name, _, seconds = text.partition("=")
        if name not in LIMITS:
            raise argparse.ArgumentTypeError(f"{name}; there are {', '.join(LIMITS)}")
        return name, float(seconds)

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", type=Path, required=True, help="the binary")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    parser.add_argument("--only", type=listed(SECTIONS), default=list(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--sizes", type=listed(SIZES), help="sizes of ops, bench and peer, separated by commas")
    parser.add_argument("--limit", type=limit, action="append", default=[], metavar="SECTION=SECONDS")
    parser.add_argument("--steps", type=int, default=200, help="steps of a training that is timed")
    parser.add_argument("--best", action="store_true", help="only the mode of PyTorch that was the fastest before")
    parser.add_argument("--turns", type=int, default=3, help="turns against PyTorch")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu tries this script out")
    return parser.parse_args()


def main() -> None:
    """Runs the sections and prints the table."""
    args = arguments()
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
                bench.note("the section", f"not done after {limits[name]:.0f} s", False)
            table = write(bench)
            for results in Path(work).glob("results-*"):
                shutil.rmtree(results)
    print("\n" + table)
    sys.exit(1 if any(finding.holds is False for finding in bench.findings) else 0)


if __name__ == "__main__":
    main()
