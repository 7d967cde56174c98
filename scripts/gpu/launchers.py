"""Checks that runs under torchrun, under Open MPI and on two hosts have the same bits as a run with threads."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import Bench, attempt, the_run
from ranks import SPLIT, launch, worlds

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
ENV = ["parallelism.launcher=env", "parallelism.world_size=auto"]
# The variables of a shell in a Slurm job of four tasks.
SLURM = ["SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_LOCALID=0", "SLURM_JOB_ID=1", "SLURM_NNODES=1"]
HOSTS = {"xrun-a": "10.87.41.1", "xrun-b": "10.87.41.2"}
PORT = 29517


def launchers(bench: Bench) -> None:
    """Tries every installed launcher with one rank per GPU, or with four ranks on the CPU."""
    world = 4 if bench.device == "cpu" and not bench.worlds else max(worlds(bench), default=1)
    if world == 1:
        bench.note("all", "one GPU: nothing to launch")
        return
    recipe = bench.work / "launchers.toml"
    recipe.write_text(SPLIT.replace("DTYPE", "fp32"))
    threads = bench.train(recipe, [*launch(world), *processors(bench)])
    want = threads.digest()
    table = ["--algos-from", str(threads.path)] if bench.device == "cuda" else []
    torchrun = [*TORCHRUN, "--standalone", "--nproc-per-node", str(world)]
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(world)]
    trials = {
        "torchrun": (torchrun, ENV, ["started by torchrun"]),
        "torchrun inside Slurm": (
            ["env", *SLURM, *torchrun],
            ENV,
            ["started by torchrun", "ignored: SLURM_PROCID (Slurm)"],
        ),
        "mpirun": (mpirun, ENV, ["started by Open MPI"]),
        "a bare allocation": (["env", *SLURM], launch(world), []),
    }
    for what, (prefix, keys, says) in trials.items():
        if shutil.which(prefix[0]) is None:
            bench.note(what, f"{prefix[0]} is not installed")
            continue
        command, results = bench.command(recipe, [*keys, *processors(bench)], *table)
        run = [*prefix, *command]
        attempt(bench, what, lambda w=what, c=run, r=results, s=says: started(bench, w, c, r, s, want))
    attempt(bench, "two hosts", lambda: two_hosts(bench, recipe, world, want))


def processors(bench: Bench) -> list[str]:
    """Returns the keys for one thread per rank on the CPU."""
    return ["engine.threads=1"] if bench.device == "cpu" else []


def started(bench: Bench, what: str, command: list[str], results: Path, says: list[str], want: dict[str, str]) -> None:
    """Runs a launcher's command and checks its run."""
    bench.call(command)
    compared(bench, what, results, says, want)


def compared(bench: Bench, what: str, results: Path, says: list[str], want: dict[str, str]) -> None:
    """Checks that a run has the bits of the run with threads, and that its log says how it was started."""
    run = the_run(results)
    log = (run.path / "log").read_text()
    differ = [name for name, digest in run.digest().items() if want[name] != digest]
    missing = [text for text in says if text not in log]
    found = f"other bits in {', '.join(differ)}" if differ else "the bits of threads"
    found += "".join(f", no `{text}` in its log" for text in missing)
    bench.note(what, found, not differ and not missing)


def two_hosts(bench: Bench, recipe: Path, world: int, want: dict[str, str]) -> None:
    """Runs half of the ranks on each of two simulated hosts; the second must not write a results folder."""
    what = "two network namespaces"
    if bench.device != "cpu" or shutil.which("ip") is None or os.geteuid() != 0:
        bench.note(what, "needs the CPU, `ip` and root")
        return
    with hosts():
        commands = []
        for number, name in enumerate(HOSTS):
            command, results = bench.command(recipe, [*ENV, *processors(bench)])
            nodes = ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", str(world // 2)]
            meet = ["--master-addr", next(iter(HOSTS.values())), "--master-port", str(PORT)]
            secret = ["ip", "netns", "exec", name, "env", "XRUN_SECRET=of this run alone"]
            commands.append(([*secret, *TORCHRUN, *nodes, *meet, *command], results))
        (first, results), (second, nothing) = commands
        other = bench.start(second, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        bench.call(first)
        code = other.wait(timeout=bench.left())
    compared(bench, what, results, [f"rank 0 of {world}, started by torchrun"], want)
    bench.note("the second host", f"exit {code}, results: {nothing.exists()}", code == 0 and not nothing.exists())


@contextmanager
def hosts() -> Iterator[None]:
    """Simulates two hosts: network namespaces that are joined by a pair of virtual interfaces."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    made = []
    try:
        for name in HOSTS:
            ip("netns", "add", name)
            made.append(name)
        a, b = HOSTS
        ip("link", "add", "xrun0", "netns", a, "type", "veth", "peer", "name", "xrun0", "netns", b)
        for name, address in HOSTS.items():
            ip("-n", name, "address", "add", f"{address}/24", "dev", "xrun0")
            for device in ("xrun0", "lo"):
                ip("-n", name, "link", "set", device, "up")
        yield
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{' '.join(error.cmd)}: {error.stderr.decode().strip()}") from None
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
