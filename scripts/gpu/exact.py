"""Checks results that must be equal to the bit, or within a stated distance."""

import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import SCRIPTS, Bench, OutOfTime, Run, attempt, end, the_run

# FFN, vocabulary and batch are not multiples of the kernels' tile sizes. Dropout shows whether random draws
# depend only on positions.
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


def check(bench: Bench) -> None:
    """Runs every case of every op."""
    output = bench.call([bench.xrun, "ops", "check", "--device", bench.device])
    bench.note("cases of all ops", output.strip().splitlines()[-1], True)


def long_sequences(bench: Bench) -> None:
    """Checks sampled rows of attention over long sequences; the log has every error."""
    if bench.device == "cuda":
        output = bench.call([bench.xrun, "ops", "check", "--long", "--device", "cuda", "--verbose"])
        bench.note("attention of long sequences", output.strip().splitlines()[-1], True)


# The prompt of recipes that learn.
PROMPT = "Once upon a time"
NOT_OURS = ("cutlass", "cublas", "nvjet", "gemm", "splitK")
TOOLS = ("memcheck", "initcheck", "synccheck", "racecheck")
PROCESSES = 14


def sanitize(bench: Bench) -> None:
    """Runs every case of every op under compute-sanitizer, many ops in parallel; names ops that ran out of time."""
    # A first run without the tools fills the cache of kernels, so that the tools do not slow down
    # compilation.
    output = bench.call([bench.xrun, "ops", "check", "--device", bench.device, "--verbose"])
    ops = sorted({line.split()[2] for line in output.splitlines() if line.startswith("ok ")})
    ended: dict[str, dict[str, str]] = {tool: {} for tool in TOOLS}
    logs = bench.out / "sanitize"
    logs.mkdir(exist_ok=True)
    with ThreadPoolExecutor(PROCESSES) as pool:
        tasks = [
            pool.submit(sanitize_op, bench, tool, op, logs / f"{tool}-{op}.log", ended[tool])
            for tool in TOOLS
            for op in ops
        ]
    for task in tasks:
        # Ops that ran out of time are reported below; `result` raises any other error.
        task.result()
    for tool, found in ended.items():
        bad = {op: said for op, said in found.items() if said}
        late = [op for op in ops if op not in found]
        text = f"{len(found) - len(bad)} of {len(ops)} ops without a finding"
        text += "".join(f"; {op}: {said}" for op, said in bad.items())
        text += f"; not done in time: {', '.join(late)}" if late else ""
        bench.note(tool, text, not bad and not late)


def sanitize_op(bench: Bench, tool: str, op: str, log: Path, ended: dict[str, str]) -> None:
    """Runs the cases of an op, and of ops whose names contain its name, under a tool.

    Puts what the tool found into `ended`; an empty text means nothing.
    """
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "20", "--error-exitcode", "99"]
    # xrun counts a kernel's parameters by asking the driver for one after another until it returns an error.
    command += ["--report-api-errors", "no"]
    # Matmuls run NVIDIA's own kernels, which are not checked here.
    command += [word for name in NOT_OURS for word in ("--kernel-name-exclude", f"kns={name}")]
    command += [bench.xrun, "ops", "check", "--device", bench.device, op]
    with contextlib.suppress(OutOfTime, subprocess.TimeoutExpired), log.open("w") as file:
        limit = bench.left()
        process = bench.start(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            code = process.wait(timeout=limit)
        finally:
            end(process)
        said = [line.strip("= ") for line in log.read_text().splitlines() if "SUMMARY" in line]
        ended[op] = "" if code == 0 else f"exit {code}, {'; '.join(said)[:200]}"


def bits(bench: Bench) -> None:
    """Checks that the curve and the tensors have the same bits, however the run is executed."""
    for dtype in ("bf16", "fp32"):
        recipe = bench.work / f"bits-{dtype}.toml"
        recipe.write_text(SMALL.replace("DTYPE", dtype))
        first = bench.train(recipe, [])
        want = first.digest()
        # The fastest matmul algorithms are chosen by timing, so the other runs must use the first run's
        # choice.
        same = ["--algos-from", str(first.path)] if bench.device == "cuda" else []
        bench.note(f"{dtype} first run", f"loss {first.losses()[-1]:.4f}", first.summary()["status"] == "ok")

        def compare(what: str, run: Run, dtype: str = dtype, want: dict[str, str] = want) -> None:
            have = run.digest()
            other = [name for name in want if have[name] != want[name]]
            bench.note(f"{dtype} {what}", f"{', '.join(other)} differ" if other else "the same bits", not other)

        ways = {
            "once more": [],
            "no recompute": ["activation_checkpoint.mode=none"],
            "recompute where gradients emit": ["activation_checkpoint.mode=emitted"],
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
    if bench.device == "cuda":
        attempt(bench, "short rows beside a busy process", lambda: beside_load(bench))


def beside_load(bench: Bench) -> None:
    """Checks that training on short sequences gives the same bits while another process keeps the GPU busy."""
    keys = ["data.corpus=random", "data.train_tokens=4000000", "data.validation_tokens=32768", "validation.steps=1"]
    keys += ["generation.samples=0"]
    alone = bench.train("dim384", keys)
    busy = "import torch; a = torch.ones(8192, 8192, device='cuda', dtype=torch.bfloat16)\nwhile True: a @ a"
    load = bench.start([sys.executable, "-c", busy], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        beside = bench.train("dim384", keys, "--algos-from", str(alone.path))
        if load.poll() is not None:
            raise RuntimeError(f"the process that keeps the GPU busy ended with {load.returncode}")
    finally:
        end(load)
    slower = beside.summary()["steady_state"]["step_ms"]["median"] / alone.summary()["steady_state"]["step_ms"]["median"]
    other = [name for name, digest in alone.digest().items() if beside.digest()[name] != digest]
    found = f"{', '.join(other)} differ" if other else "the same bits"
    bench.note("short rows beside a busy process", f"{found}, steps {slower:.2f} times as long", not other)


def killed_and_resumed(bench: Bench, recipe: Path, options: list[str]) -> Run:
    """Kills a run between two of its checkpoints, resumes it, and returns it."""
    for _ in range(5):
        command, results = bench.command(recipe, ["checkpoint.interval=25"], *options)
        process = bench.start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            bench.left()
            # After the first checkpoints, and well before the end.
            rows = [len(file.read_text().splitlines()) for file in results.glob("*/*/metrics.csv")]
            if any(count > 80 for count in rows):
                break
            time.sleep(0.002)
        alive = process.poll() is None
        end(process)
        if alive:
            bench.call([bench.xrun, "--results", str(results), "resume", "--quiet"])
            return the_run(results)
    raise RuntimeError("all five runs ended before they could be killed")


def step(bench: Bench) -> None:
    """Compares one step of a small and of a real model with PyTorch, for each way to compute it."""
    small = bench.work / "step.toml"
    small.write_text(SMALL.replace("DTYPE", "bf16"))
    ways = ([], ["engine.fused=false"], ["engine.attention=unfused"], ["activation_checkpoint.mode=full"])
    trials = [(small, dtype, [*way, "model.dropout=0"]) for dtype in ("fp32", "bf16") for way in ways]
    trials += [("dim768", dtype, ["data.train_tokens=500000"]) for dtype in ("fp32", "bf16")]
    for recipe, dtype, keys in trials:
        name = " ".join([Path(recipe).stem, dtype, *keys[:-1]])
        attempt(bench, name, lambda r=recipe, d=dtype, k=keys, n=name: against_torch(bench, r, d, k, n))


def against_torch(bench: Bench, recipe: str | Path, dtype: str, keys: list[str], name: str) -> None:
    """Compares the tensors of a step with PyTorch's."""
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
    """Checks that TF32 and bf16 learn as well as fp32."""
    losses = {}
    for dtype in ("fp32", "tf32", "bf16"):
        keys = [f"training.dtype={dtype}", "training.steps=150", "data.train_tokens=2000000", "validation.interval=0"]
        run = bench.train("dim768", [*keys, "checkpoint.keep=0"])
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


def recipes(bench: Bench) -> None:
    """Checks that whole recipes learn, write text, and load in transformers, which must continue with equal tokens."""
    for name in ("v8-dim1024", "v9-full-stack"):
        attempt(bench, name, lambda name=name: learn(bench, name))


def learned(bench: Bench, name: str, keys: list[str], what: str) -> Run:
    """Trains 300 steps of a recipe, keeps the run, and checks that the loss falls to less than half."""
    settings = ["training.steps=300", "data.train_tokens=4000000", "validation.interval=100"]
    settings += ["generation.samples=1", f"generation.prompt={PROMPT}", "generation.tokens=64"]
    run = bench.train(name, [*settings, *keys])
    bench.keep(run)
    summary, losses = run.summary(), run.losses()
    holds = summary["status"] == "ok" and losses[-1] < losses[0] / 2
    text = f"loss {losses[0]:.3f} to {losses[-1]:.3f}, validation {summary['val_loss_over_floor']:.3f} of the floor"
    bench.note(what, f"{text}, {summary['tok_s']:,.0f} tok/s: {summary['samples']!r}"[:400], holds)
    return run


def learn(bench: Bench, name: str) -> None:
    """Trains a recipe on one GPU, and compares its greedy text with that from its export in transformers."""
    run = learned(bench, name, ["parallelism.world_size=1"], name)
    results, folder = run.path.parent.parent, bench.work / f"export-{name}"
    here = [bench.xrun, "--results", str(results)]
    bench.call([*here, "export", run.path.name, "--to", str(folder)])
    greedy = ["--prompt", PROMPT, "--temperature", "0", "--tokens", "32", "--samples", "1", "--json"]
    ways = ["training.dtype=fp32", f"engine.device={bench.device}"]
    ours = json.loads(bench.call([*here, "sample", run.path.name, *greedy, *ways]).splitlines()[-1])["text"]
    script = [sys.executable, str(SCRIPTS / "check_export.py"), str(folder), "--prompt", PROMPT, "--tokens", "32"]
    said = bench.call(script).splitlines()
    theirs = next(line.split(maxsplit=1)[1] for line in said if line.startswith("text "))
    bench.note(f"{name} export, 32 greedy tokens", repr(ours), repr(ours) == theirs)
    shutil.rmtree(run.path / "checkpoint")
