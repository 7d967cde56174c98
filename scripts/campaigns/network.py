"""Runs on file systems that behave like a network's: hidden files, lost answers, late errors, caches, missing calls.

Two clients share a folder. A run is interrupted and resumed on either client, a sweep has a process on each, and a text is
tokenized into a cache there. Faults may end a command with an error, but nothing may be lost or different, and xrun
may not claim what is not so. Needs root and /dev/fuse.
"""

import errno
import os
import signal
import time
from pathlib import Path

from disks import holds
from fuse import Behavior, Faults, Mounted, mount, unmount
from interruptions import cells
from trial import Failed, Trial, go_on, nobody_left, only, runs, same_bits, summary

BEHAVIORS = {
    # Both clients are of one machine, where only locks tell who lives, so sweeps need them between clients.
    "hidden files": {"silly_rename": True, "locks": "server"},
    "lost answers": {"lost_answers": 0.03, "locks": "server"},
    "cached names": {"cached_s": 1.0, "silly_rename": True, "locks": "server"},
    "clock ahead, 2 s": {"clock_ahead_s": 5400, "resolution_s": 2, "locks": "server"},
    "clock behind": {"clock_ahead_s": -5400, "resolution_s": 1, "locks": "server"},
    "no links, no fsync of folders": {"link_error": errno.EPERM, "folder_fsync_error": errno.EINVAL, "locks": "server"},
    "no links, no fsync, EOPNOTSUPP": {"link_error": errno.EOPNOTSUPP, "folder_fsync_error": errno.EOPNOTSUPP, "locks": "server"},
    "statfs of zeros": {"empty_statfs": True, "locks": "server"},
    "names without case": {"ignores_case": True, "silly_rename": True, "locks": "server"},
}
LATE = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EDQUOT": errno.EDQUOT, "ESTALE": errno.ESTALE}
RUN = ["tiny.toml", "-q", "checkpoint.keep_best=true", "checkpoint.keep=2"]
SWEEP = ["sweep", "tiny.toml", "training.seed=1,2,3", "training.steps=20", "-q"]
KINDS = tuple(
    f"{what}: {how}" for how in ("run", "sweep") for what in (*BEHAVIORS, *(f"late {error}" for error in LATE))
)
# Changes that a run makes until its end, about.
CHANGES = 800


def missing(work: Path) -> str:
    """Returns why this campaign cannot run here; empty if it can."""
    probe = work / "probe-fuse"
    probe.mkdir(exist_ok=True)
    try:
        os.close(mount(probe))
    except OSError as failed:
        return f"it may not mount a FUSE file system here: {failed}"
    unmount(probe)
    return ""


def run(trial: Trial) -> None:
    """Runs a trial on a file system with one behavior."""
    what, how = trial.kind.split(": ")
    # A file system without a behavior of its own has that of NFS.
    behavior = Behavior(**BEHAVIORS.get(what, {"silly_rename": True, "locks": "server"}))
    mounted = Mounted(trial.folder / "disk", behavior, trial.seed, clients=2)
    trial.at_end(mounted.close)
    # Not through a client, whose faults are for xrun.
    (mounted.backing / "tiny.toml").write_text((trial.folder / "tiny.toml").read_text())
    if what.startswith("late"):
        mounted.faults.set(Faults.LATE, trial.random.randrange(1, CHANGES), LATE[what.removeprefix("late ")])
    {"run": struck_run, "sweep": struck_sweep}[how](trial, mounted)


def struck_run(trial: Trial, mounted: Mounted) -> None:
    """Interrupts a run up to three times, resuming it on either client, and then resumes it to the end."""
    expected, took = trial.undisturbed("run", RUN)
    for _ in range(trial.random.randint(1, 3)):
        client, before = trial.random.choice(mounted.mounts), records(mounted)
        process = trial.start(go_on(client, RUN), cwd=client)
        if process.wait_until(trial.random.random() * 2 * took):
            sent = trial.random.choice((signal.SIGKILL, signal.SIGTERM))
            trial.note(f"signal {sent}")
            process.signal(sent)
            trial.hits += 1
        code = process.ends()
        nobody_left(trial.folder, 5)
        # A resume that fails before its first step leaves the record of the run that was killed.
        is_begun = code != 1 or records(mounted) != before
        if code != -signal.SIGKILL and is_begun and runs(client / "results"):
            # The other client's cache is older than that of the one that ran.
            holds(only(runs(mounted.backing / "results")), code, process.said())
    calm(trial, mounted)
    client = trial.random.choice(mounted.mounts)
    time.sleep(1.5 if trial.kind.startswith("cached") else 0)
    trial.finish(go_on(client, RUN), cwd=client)
    saves_failed = trial.kind.startswith(("late", "lost"))
    same_bits(only(runs(mounted.backing / "results")), expected, saves_failed=saves_failed)
    if not saves_failed:
        # The lock's file is open while its folder is removed.
        run = only(runs(client / "results")).name
        trial.finish(["runs", "rm", run], cwd=client)
        # A process that was killed before it wrote a summary has left a folder that is no run.
        if left := [path for path in (mounted.backing / "results/tiny").rglob("*") if run in path.parts]:
            raise Failed(f"a removed run left {left}")
        nothing_hidden(mounted)
    nothing_hidden(mounted)


def records(mounted: Mounted) -> list[bytes]:
    """Returns the summaries of all runs."""
    return [path.read_bytes() for path in sorted(mounted.backing.glob("results/*/*/summary.json"))]


def struck_sweep(trial: Trial, mounted: Mounted) -> None:
    """Runs a sweep with a process on each client, one of which may be interrupted, until it succeeds."""

    def make(folder: Path) -> tuple[dict, float]:
        began = time.monotonic()
        trial.finish(SWEEP, cwd=folder)
        return cells(trial, folder), time.monotonic() - began

    expected, took = trial.reference("sweep", make)
    shared = [trial.start(SWEEP, cwd=client) for client in mounted.mounts]
    struck = trial.random.choice(shared)
    if struck.wait_until(trial.random.random() * 2 * took):
        struck.signal(trial.random.choice((signal.SIGKILL, signal.SIGTERM)), group=trial.random.random() < 0.5)
        trial.hits += 1
    for process in shared:
        process.ends()
    calm(trial, mounted)
    # Cells whose processes were killed run on.
    nobody_left(trial.folder, 60)
    for _ in range(6):
        if trial.start([*SWEEP, "--retry", "failed,killed"], cwd=mounted.mounts[0]).ends() == 0:
            break
    nobody_left(trial.folder, 5)
    if (found := cells(trial, mounted.backing)) != expected:
        raise Failed(f"the cells differ: {[key for key in expected if found.get(key) != expected[key]]}")
    nothing_hidden(mounted)


def calm(trial: Trial, mounted: Mounted) -> None:
    """Ends the faults and records them."""
    mounted.faults.set(Faults.CALM)
    text = mounted.log.read_text()
    trial.hits += len(text.splitlines())
    trial.events += text.splitlines()
    if "the server failed" in text:
        raise RuntimeError(text)


def nothing_hidden(mounted: Mounted) -> None:
    """Checks that no file stays hidden, which means that nobody holds one open that it removed."""
    time.sleep(0.05)
    if hidden := [path for path in mounted.backing.rglob(".nfs*")]:
        raise Failed(f"hidden files are left: {hidden}")
