"""Disks that become full at a random byte or at a random moment."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from trial import Failed, Trial, newest, nobody_left, only, runs, same_bits, summary

KIB = 1024
KINDS = ("small", "filled at a moment", "small, SIGTERM", "filled at a moment, SIGTERM")
# More bytes than a run takes.
LARGE = 64 * 1024 * KIB


def run(trial: Trial) -> None:
    """Runs a trial: a run on a disk that is small or that another program fills, then a resume with enough space."""
    disk = trial.folder / "disk"
    disk.mkdir()
    filled, stopped = trial.kind.startswith("filled"), trial.kind.endswith("SIGTERM")
    fresh = ["--results", "disk/results", "tiny.toml", "-q"]
    expected, took = trial.undisturbed("run", ["tiny.toml", "-q"])
    needs = sum(path.stat().st_size for path in expected.rglob("*") if path.is_file())
    size = LARGE if filled else int(trial.random.uniform(8 * KIB, 1.2 * needs))
    mount(disk, size)
    trial.at_end(lambda: subprocess.run(["umount", "-l", str(disk)], check=False))
    trial.note(f"a disk of {size} bytes")
    for _ in range(trial.random.randint(1, 2)):
        strike(trial, disk, fresh, took, filled, stopped)
        empty(disk)
    subprocess.run(["mount", "-o", f"remount,size={LARGE}", str(disk)], check=True)
    trial.finish(command(disk, fresh))
    same_bits(only(runs(disk / "results")), expected)


def command(disk: Path, fresh: list[str]) -> list[str]:
    """Returns the command that resumes the run, or starts one if no run has got as far as its summary."""
    if not runs(disk / "results"):
        return fresh
    return ["--results", "disk/results", "resume", only(runs(disk / "results")).name, "-q"]


def strike(trial: Trial, disk: Path, fresh: list[str], took: float, filled: bool, stopped: bool) -> None:
    """Runs on the disk until the end and compares what xrun said with what is on the disk."""
    complete = [path for path in runs(disk / "results") if summary(path)["status"] == "ok"]
    process = trial.start(command(disk, fresh))
    if filled and process.wait_until(trial.random.random() * took):
        trial.hits += fill(trial, disk)
    if stopped and process.wait_until(trial.random.random() * took):
        trial.note("SIGTERM")
        process.signal(signal.SIGTERM)
    code, said = process.ends(), process.said()
    if "No space left" in said and not filled:
        trial.hits += 1
    nobody_left(trial.folder, 5)
    found = runs(disk / "results")
    if not found:
        if code == 0:
            raise Failed("exit code 0, but there is no run")
        return
    if complete and code != 0:
        # The run was complete before this command, so it must still be complete although the command failed.
        if summary(complete[0])["status"] != "ok":
            raise Failed(f"a complete run became {summary(complete[0])['status']}")
        return
    holds(only(found), code, said)


def holds(run_folder: Path, code: int, said: str) -> None:
    """Checks that xrun does not claim to have saved anything that it did not save."""
    status = summary(run_folder)
    checkpoints = [int(path.name[5:]) for path in (run_folder / "checkpoint").glob("step-*")]
    latest = max(checkpoints, default=0)
    if code == -signal.SIGTERM:
        # SIGTERM came before xrun installed its signal handler, so it has said nothing.
        return
    drawn = "its plots are not" not in said
    if (code == 0) != (status["status"] == "ok" and drawn):
        raise Failed(f"exit code {code}, but the status is {status['status']}")
    if code == 0 and latest != status["steps_planned"]:
        raise Failed(f"exit code 0, but the newest checkpoint is of step {latest} of {status['steps_planned']}")
    for step in re.findall(r"after step (\d+), saved", said):
        if int(step) not in checkpoints:
            raise Failed(f"xrun says that it saved step {step}, but the checkpoints are {checkpoints}")
    if code == 75 and latest != status["steps"]:
        raise Failed(f"exit code 75 after step {status['steps']}, but the newest checkpoint is of step {latest}")
    if status["status"] == "running":
        raise Failed(f"exit code {code}, but the summary says that the run is running:\n{said}")
    # A disk that is full before the first step is refused.
    refused = code == 2 and "checkpoints are written there" in said
    if code not in (0, 1, 74, 75) and not refused:
        raise Failed(f"unexpected exit code {code}:\n{said}")


def missing(work: Path) -> str:
    """Returns why this campaign cannot run here; empty if it can."""
    probe = work / "probe"
    probe.mkdir()
    try:
        mount(probe, 64 * KIB)
    except (OSError, subprocess.CalledProcessError):
        return "it may not mount a tmpfs here: run it as root"
    subprocess.run(["umount", str(probe)], check=True)
    return ""


def mount(disk: Path, size: int) -> None:
    """Mounts a tmpfs of `size` bytes, rounded down to whole pages."""
    options = f"size={size // 4096 * 4096}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True, capture_output=True)


def fill(trial: Trial, disk: Path) -> int:
    """Fills the disk up to a few free bytes, as another program would; returns 1."""
    leave = trial.random.choice((0, 0, 4, 16, 64)) * KIB
    system = os.statvfs(disk)
    take = max(0, system.f_bavail * system.f_frsize - leave)
    trial.note(f"filled up to {leave} bytes")
    with (disk / "filler").open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, max(1, take))
        except OSError:
            # Another process took the rest in the meantime.
            pass
    time.sleep(trial.random.random() * 0.05)
    return 1


def empty(disk: Path) -> None:
    """Removes the file that fills the disk."""
    (disk / "filler").unlink(missing_ok=True)
