"""Kills, suspends and stops runs, sweeps and comparisons at random moments."""

import csv
import os
import signal
import time

from trial import Failed, Process, Trial, children, go_on, newest, nobody_left, only, runs, same_bits, summary

# The signals to send in order; a float is a pause in seconds.
STRIKES = {
    "kill -9": [signal.SIGKILL],
    "SIGTERM": [signal.SIGTERM],
    "SIGINT": [signal.SIGINT],
    "SIGHUP": [signal.SIGHUP],
    "SIGUSR1": [signal.SIGUSR1],
    "SIGQUIT": [signal.SIGQUIT],
    "SIGUSR2, SIGXCPU": [signal.SIGUSR2, 0.1, signal.SIGXCPU],
    "SIGUSR1, SIGTERM": [signal.SIGUSR1, 0.7, signal.SIGTERM],
    "SIGTERM twice": [signal.SIGTERM, 0.7, signal.SIGTERM],
    "SIGSTOP, SIGCONT": [signal.SIGSTOP, 0.1, signal.SIGCONT],
    "SIGSTOP, kill -9": [signal.SIGSTOP, 0.05, signal.SIGKILL],
}
COMMANDS = ("run", "sweep", "compare")
KINDS = tuple(f"{command}: {strike}" for command in COMMANDS for strike in STRIKES)
SWEEP = ["sweep", "tiny.toml", "training.seed=1,2,3", "training.steps=20", "-q"]
COMPARE = ["compare", "tiny.toml", "metrics.interval=7", "--set", "training.steps=20", "--repeats", "2"]


def run(trial: Trial) -> None:
    """Runs a trial: one command and one kind of interruption."""
    command, strike = trial.kind.split(": ")
    {"run": struck_run, "sweep": struck_sweep, "compare": struck_compare}[command](trial, strike)


def strike_at(trial: Trial, process: Process, strike: str, took: float, target: int | None = None) -> None:
    """Interrupts a process at a random moment of the `took` seconds that it needs."""
    moment = trial.random.random() * took
    if not process.wait_until(moment):
        process.ends()
        return
    trial.note(f"{strike} after {moment:.3f} s" + (f" of child {target}" if target else ""))
    trial.hits += 1
    for sent in STRIKES[strike]:
        if isinstance(sent, float):
            time.sleep(sent)
            continue
        process.signal(sent)
    process.ends()


def struck_run(trial: Trial, strike: str) -> None:
    """Interrupts a run and its resumes up to five times, then resumes it to the end."""
    # Plots are seldom drawn, because they take longer than the training.
    fresh = ["tiny.toml", "-q", *(["metrics.plots=true"] if trial.random.random() < 0.1 else [])]
    expected, took = trial.undisturbed(" ".join(fresh), fresh)
    for _ in range(trial.random.randint(1, 5)):
        strike_at(trial, trial.start(go_on(trial.folder, fresh)), strike, took)
        claims_hold(trial)
    nobody_left(trial.folder, 5)
    trial.finish(go_on(trial.folder, fresh))
    same_bits(only(runs(trial.folder / "results")), expected)


def claims_hold(trial: Trial) -> None:
    """Checks that each run that ended cleanly has a checkpoint of its last step."""
    for found in runs(trial.folder / "results"):
        is_said = summary(found)
        if is_said["status"] in ("ok", "interrupted") and int(newest(found).name[5:]) != is_said["steps"]:
            raise Failed(f"{is_said['status']} after step {is_said['steps']}, but the newest checkpoint is {newest(found).name}")


def cells(trial: Trial, folder) -> dict:
    """Returns what must be reproducible of a sweep's cells: the table without times, and each run's rows, by seed."""
    tables = list((folder / "results/sweeps").glob("*/table.csv"))
    if len(tables) != 1:
        raise Failed(f"one sweep has {len(tables)} tables")
    found = {}
    for row in csv.DictReader(tables[0].open()):
        path = folder / "results" / row["run"]
        found[row["training.seed"]] = (
            row["status"],
            row["steps"],
            row["loss"],
            row["val_loss"],
            (path / "metrics.csv").read_bytes(),
        )
    return found


def struck_sweep(trial: Trial, strike: str) -> None:
    """Interrupts a sweep, then starts it until it succeeds."""

    def make(folder):
        began = time.monotonic()
        trial.finish(SWEEP, cwd=folder)
        return cells(trial, folder), time.monotonic() - began

    expected, took = trial.reference("sweep", make)
    for _ in range(trial.random.randint(1, 3)):
        process = trial.start(SWEEP)
        struck_child(trial, process, strike, took)
    for _ in range(6):
        # A sweep ends although a cell's run was killed; starting it again tries that cell again.
        if trial.start(SWEEP).ends() == 0:
            break
    nobody_left(trial.folder, 5)
    if (found := cells(trial, trial.folder)) != expected:
        raise Failed(f"the cells differ: {[key for key in expected if found.get(key) != expected[key]]}")


def struck_child(trial: Trial, process: Process, strike: str, took: float) -> None:
    """Interrupts a command that runs children: the command, its current children, or both."""
    whom = trial.random.choice(("parent", "child", "both"))
    moment = trial.random.random() * took
    if not process.wait_until(moment):
        process.ends()
        return
    targets = children(process.child.pid) if whom != "parent" else []
    trial.note(f"{strike} of {whom} after {moment:.3f} s")
    trial.hits += 1
    for sent in STRIKES[strike]:
        if isinstance(sent, float):
            time.sleep(sent)
            continue
        for target in targets:
            try:
                os.kill(target, sent)
            except ProcessLookupError:
                pass
        if whom != "child":
            process.signal(sent)
    process.ends()


def struck_compare(trial: Trial, strike: str) -> None:
    """Interrupts a comparison: no process may be left over, and its runs must resume to the same bits."""
    short = ["tiny.toml", "training.steps=20", "-q"]
    expected, _ = trial.undisturbed("compare's run", short)

    def make(folder):
        began = time.monotonic()
        trial.finish(COMPARE, cwd=folder, codes=(0, 3))
        return time.monotonic() - began

    took = trial.reference("compare", make)
    struck_child(trial, trial.start(COMPARE), strike, took)
    # A trial whose parent was killed still runs to its end.
    nobody_left(trial.folder, 60)
    for found in runs(trial.folder / "results"):
        if summary(found)["status"] in ("running", "interrupted", "failed", "unsaved"):
            trial.finish(["resume", str(found)])
    for found in runs(trial.folder / "results"):
        same_bits(found, expected, weights=(found / "checkpoint").is_dir() and any(found.glob("checkpoint/step-*")))
    said = trial.finish(COMPARE, codes=(0, 3))
    if "differ" in said:
        raise Failed(f"a comparison of a program with itself differs:\n{said}")
