"""Kills, suspends or stops a rank, under every launcher."""

import os
import signal
import time
from pathlib import Path

from trial import Failed, Process, Trial, children, nobody_left, only, runs, same_bits

LAUNCHERS = ("thread", "process", "env")
STRIKES = ("kill -9", "SIGSTOP", "SIGSTOP, SIGCONT", "SIGTERM")
KINDS = tuple(f"{launcher}: {strike}" for launcher in LAUNCHERS for strike in STRIKES)

# TIMEOUT is `parallelism.timeout_s`, the seconds without progress after which a run fails. It then has SOON
# seconds to end: xrun promises 4 s, and a busy machine needs more.
TIMEOUT = 2.0
SOON = 30.0


def run(trial: Trial) -> None:
    """Runs a trial: one launcher, one rank, one fault, and a resume."""
    launcher, strike = trial.kind.split(": ")
    world = trial.random.choice((1, 2, 3)) if launcher != "env" else trial.random.choice((2, 3))
    rank = trial.random.randrange(world)
    keys = [f"parallelism.world_size={world}", f"parallelism.launcher={launcher}"]
    fresh = ["tiny.toml", "-q", *keys, f"parallelism.timeout_s={TIMEOUT}"]
    alone = ["tiny.toml", "-q", f"parallelism.world_size={world}"]
    expected, took = trial.undisturbed(f"{world} ranks", alone)
    members = start(trial, launcher, world, fresh)
    moment = trial.random.random() * took * (1.0 if launcher == "thread" else 1.5)
    suspended = None
    if members[0].wait_until(moment):
        trial.note(f"{strike} of rank {rank} of {world} after {moment:.3f} s")
        struck(trial, strike, launcher, members, rank)
        suspended = rank if (strike, launcher) == ("SIGSTOP", "env") else None
    deadline = time.monotonic() + TIMEOUT + SOON
    for number, member in enumerate(members):
        if number == suspended:
            # The others end without it. Its launcher, which is this script, has to kill it.
            continue
        member.ends(max(1.0, deadline - time.monotonic()))
        trial.note(f"process {number} ended")
    for member in members:
        member.kill()
    nobody_left(trial.folder, 10)
    go_on(trial, launcher, world, fresh)
    same_bits(only(runs(trial.folder / "results")), expected)


def go_on(trial: Trial, launcher: str, world: int, fresh: list[str]) -> None:
    """Resumes the run under the same launcher, or starts it again if there is none."""
    found = runs(trial.folder / "results")
    # There are no more faults, but the machine may be busy.
    patient = "parallelism.timeout_s=600"
    arguments = ["resume", str(only(found)), "-q", patient] if found else [*fresh[:-1], patient]
    for member in start(trial, launcher, world, arguments):
        if (code := member.ends()) != 0:
            raise Failed(f"the resume ended with {code}:\n{member.said()}")


def start(trial: Trial, launcher: str, world: int, arguments: list[str]) -> list[Process]:
    """Starts the processes of a run: one per rank if this script is the launcher, else one."""
    if launcher != "env":
        return [trial.start(arguments)]
    # xrun takes one of the eight ports after this one. Trials that run at the same time are other processes, and
    # the ranks of one must not meet those of another.
    port = 16_000 + 16 * (os.getpid() % 3_000)
    of_all = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
    of_all["MASTER_PORT"] = str(port)
    return [
        trial.start(arguments, variables=of_all | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world)
    ]


def process_of(launcher: str, members: list[Process], rank: int) -> int | None:
    """Returns the process id of a rank; None if the rank has not started or has ended."""
    if launcher == "env":
        return members[rank].child.pid
    if launcher == "thread":
        return members[0].child.pid
    # A child that has not loaded its program is no rank yet. The kernel suspends the parent until it has, so a
    # child that is stopped before suspends both, which no timeout of the parent could end.
    found = [child for child in children(members[0].child.pid) if is_worker(child)]
    return found[rank] if rank < len(found) else None


def is_worker(pid: int) -> bool:
    """Returns true if a process was started as a rank."""
    try:
        return b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def struck(trial: Trial, strike: str, launcher: str, members: list[Process], rank: int) -> None:
    """Sends the signals of a fault to a rank."""
    pid = process_of(launcher, members, rank)
    if pid is None:
        return
    trial.hits += 1
    send(pid, {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM}.get(strike, signal.SIGSTOP))
    if strike == "SIGSTOP, SIGCONT" or (strike == "SIGSTOP" and launcher == "thread"):
        # The pause may be shorter or longer than the timeout.
        time.sleep(trial.random.random() * 2 * TIMEOUT)
        send(pid, signal.SIGCONT)


def send(pid: int, number: int) -> None:
    """Sends a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass

