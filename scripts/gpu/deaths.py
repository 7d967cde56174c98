"""Makes ranks die, hang, run out of memory or stop, and checks how the run ends, what it says and what it leaves."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from bench import Bench, attempt, end, the_run
from ranks import SPLIT, launch, worlds

# Seconds from a fault to the end of every process. A hang is found only after `parallelism.timeout_s` of
# silence.
SOON = 5.0
TIMEOUT = 2.0
STRIKES = "XRUN_FAULT: fault injected"
# The fault, the run's exit code, and what the run must say. Except after SIGTERM, it must also name the rank.
FAULTS = {
    "panic": (1, "panicked"),
    "oom": (4, "out of memory"),
    "hang": (1, "no sign of rank"),
    "kill -9": (1, "its process"),
    "SIGTERM": (75, "interrupted"),
}
# Faults that come as a signal from outside. xrun injects the others into itself.
SIGNALS = {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM}
LAUNCHERS = ("thread", "process", "env")


def deaths(bench: Bench) -> None:
    """Tries every fault under every launcher, with the largest number of ranks."""
    if not worlds(bench):
        bench.note("all", "one GPU: there are no other ranks")
        return
    world = worlds(bench)[-1]
    recipe = bench.work / "deaths.toml"
    recipe.write_text(SPLIT.replace("DTYPE", "fp32").replace("steps = 20", "steps = 100_000"))
    for launcher in LAUNCHERS:
        for fault in FAULTS:
            # Ranks that are threads share a process, so one of them cannot be killed alone.
            if (launcher, fault) != ("thread", "kill -9"):
                what = f"{fault}, {launcher} launch of {world}"
                attempt(bench, what, lambda f=fault, n=launcher, w=what: death(bench, recipe, n, world, f, w))


def death(bench: Bench, recipe: Path, launcher: str, world: int, fault: str, what: str) -> None:
    """Starts a run, makes its last rank fail, and waits until no process is left."""
    keys = [*launch(world, launcher), f"parallelism.timeout_s={TIMEOUT}", "validation.interval=0"]
    if bench.device == "cpu":
        keys.append("engine.threads=1")
    command, results = bench.command(recipe, keys)
    before = memory(bench)
    with bench.log().open("a") as log:
        log.write(f"$ {' '.join(command)} # {what}\n")
    said = bench.work / "said"
    variables = {} if fault in SIGNALS else {"XRUN_FAULT": f"{fault} {world - 1} 40"}
    members = []
    try:
        with said.open("w") as file:
            for place in places(launcher, world):
                members.append(bench.start(command, variables=variables | place, stdout=file, stderr=file))
        struck = strike(bench, members, launcher, fault, results, said)
        alive = [pid for member in members for pid in (member.pid, *children(member.pid))]
        limit = SOON + 2 * TIMEOUT + 10
        while any(lives(pid) for pid in alive) and time.monotonic() - struck < limit:
            for member in members:
                member.poll()
            time.sleep(0.005)
        seconds = time.monotonic() - struck
        left = sum(lives(pid) for pid in alive)
    finally:
        for member in members:
            end(member)
        text = said.read_text()
        with bench.log().open("a") as log:
            log.write(text + "\n")
    code, wanted = FAULTS[fault]
    run = the_run(results)
    summary = run.summary()
    reason = summary["reason"] or ""
    names = wanted in f"{text} {summary['status']} {reason}"
    names = names and (fault == "SIGTERM" or f"rank {world - 1}" in reason)
    soon = SOON + (TIMEOUT if fault == "hang" else 0)
    taken = [after - had for had, after in zip(before, memory(bench), strict=True)]
    holds = members[0].returncode == code and left == 0 and seconds <= soon and names and max(taken, default=0) <= 0
    found = f"{seconds:.2f} s, exit {members[0].returncode}, status {summary['status']}"
    if left or max(taken, default=0) > 0:
        found += f", {left} processes left, {max(taken, default=0)} MiB still taken"
    bench.note(what, f"{found}: {reason}", holds, seconds=seconds, world=world, launcher=launcher, fault=fault)


def places(launcher: str, world: int) -> list[dict[str, str]]:
    """Returns the variables of each process to start: one per rank if this script is the launcher, else one."""
    if launcher != "env":
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{k: str(v) for k, v in {**common, "RANK": rank, "LOCAL_RANK": rank}.items()} for rank in range(world)]


def strike(
    bench: Bench, members: list[subprocess.Popen], launcher: str, fault: str, results: Path, said: Path
) -> float:
    """Sends the last rank a signal once the run trains, or waits until xrun injects the fault; returns the time."""
    while True:
        bench.left()
        if any(member.poll() is not None for member in members):
            raise RuntimeError(f"the run ended before the fault: {said.read_text()[-300:]}")
        rows = [file.read_text().count("\n") for file in results.glob("*/*/metrics.csv")]
        if fault not in SIGNALS:
            if STRIKES in said.read_text():
                return time.monotonic()
        elif rows and rows[0] > 5:
            last = members[-1].pid
            # SIGTERM goes to the launcher itself; SIGKILL to the last of its workers.
            workers = children(last) if launcher == "process" and fault == "kill -9" else [last]
            os.kill(max(workers), SIGNALS[fault])
            return time.monotonic()
        time.sleep(0.005)


def children(pid: int) -> list[int]:
    """Returns the child processes of a process."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def lives(pid: int) -> bool:
    """Returns whether a process is alive; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def memory(bench: Bench) -> list[int]:
    """Returns the MiB in use on every GPU."""
    if bench.device == "cpu":
        return []
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]
