"""Kills sweeps with rungs and tears the end of their ledger, as a power cut does; the same cells must win."""

import signal
from pathlib import Path

from halving import GRID, RUNGS, cells, compare, swept, timed
from trial import Failed, Trial, nobody_left

MOST_STRIKES = 4
KINDS = ("kill -9, torn",)


def run(trial: Trial) -> None:
    """Runs a trial: kills a sweep, tears its ledger, and starts it until it succeeds."""
    whole = trial.reference("whole grid", lambda folder: swept(trial, folder, GRID))
    undisturbed, took = trial.reference("halving", lambda folder: timed(trial, folder))
    for _ in range(trial.random.randint(1, MOST_STRIKES)):
        process = trial.start(RUNGS)
        if process.wait_until(took * trial.random.random()):
            process.signal(signal.SIGKILL)
        process.ends()
        nobody_left(trial.folder, 60)
        tear(trial)
    for _ in range(12):
        if trial.start(RUNGS).ends() == 0:
            break
    nobody_left(trial.folder, 5)
    found = cells(trial.folder)
    compare(found, whole)
    for name, cell in undisturbed.items():
        if found[name]["status"] != cell["status"]:
            raise Failed(f"{name} is {found[name]['status']}, but {cell['status']} in an undisturbed sweep")


def tear(trial: Trial) -> None:
    """Removes the last lines of the newest file of the ledger, and the end of the line before them."""
    files = sorted((trial.folder / "results/sweeps/ledger").glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not files:
        return
    lines = files[-1].read_bytes().splitlines(keepends=True)
    # The first line names the process.
    lost = min(trial.random.choice((0, 0, 1, 2, 4)), len(lines) - 1)
    kept = b"".join(lines[: len(lines) - lost])
    torn = trial.random.randrange(1, len(lines[-1 - lost])) if lost + 1 < len(lines) else 0
    files[-1].write_bytes(kept[: len(kept) - torn])
    trial.note(f"{lost} lines and {torn} bytes of {Path(files[-1]).name} are lost")
    trial.hits += 1
