"""Interrupts successive halving of nine cells at random moments; each cell must keep the rows of the whole grid."""

import json
import time
from pathlib import Path

from interruptions import STRIKES, struck_child
from trial import Failed, Trial, nobody_left

GRID = [
    "sweep",
    "tiny.toml",
    'sweep.log_range={"optimizer.lr"=[1e-4, 1.0]}',
    'sweep.range={"lr_scheduler.warmup_steps"=[0, 20]}',
    "sweep.samples=9",
    "training.steps=24",
    "checkpoint.interval=3",
    "validation.interval=4",
    "generation.samples=0",
    "-q",
]
RUNGS = [*GRID, "sweep.rungs=[4, 12]"]
# (status, steps): cells. Nine cells start, three continue past the first rung, and one past the second.
EXPECTED = {("dropped", 4): 6, ("dropped", 12): 2, ("ok", 24): 1}
MOST_STRIKES = 6
KINDS = tuple(STRIKES)


def run(trial: Trial) -> None:
    """Runs a trial: interrupts a sweep with rungs several times, then starts it until it succeeds."""
    strike = trial.kind
    whole = trial.reference("whole grid", lambda folder: swept(trial, folder, GRID))
    halved = trial.reference("halving", lambda folder: timed(trial, folder))
    undisturbed, took = halved
    compare(undisturbed, whole)
    for _ in range(trial.random.randint(1, MOST_STRIKES)):
        # The remaining work shrinks, so later interruptions may come after the end and miss.
        struck_child(trial, trial.start(RUNGS), strike, took * trial.random.random())
    for _ in range(12):
        # A cell whose run was killed stays open until the sweep is started again.
        if trial.start(RUNGS).ends() == 0:
            break
    nobody_left(trial.folder, 5)
    found = cells(trial.folder)
    compare(found, whole)
    for name, cell in undisturbed.items():
        if found[name]["status"] != cell["status"]:
            raise Failed(f"{name} is {found[name]['status']}, but {cell['status']} in an undisturbed sweep")


def swept(trial: Trial, folder: Path, arguments: list[str]) -> dict:
    """Runs an undisturbed sweep and returns its cells."""
    trial.finish(arguments, cwd=folder)
    return cells(folder)


def timed(trial: Trial, folder: Path) -> tuple[dict, float]:
    """Runs an undisturbed sweep with rungs; returns its cells and the seconds that it took."""
    began = time.monotonic()
    return swept(trial, folder, RUNGS), time.monotonic() - began


def cells(folder: Path) -> dict:
    """Returns each cell's last line in the ledger, with the rows of its run, by the cell's settings."""
    found = {}
    files = (folder / "results/sweeps/ledger").glob("*.jsonl")
    lines = [(parsed(line), file.name) for file in files for line in file.read_text().splitlines()]
    for line, _ in sorted(lines, key=lambda one: (one[0].get("seq", 0), one[1])):
        # The first line of each file names its process and has no `seq`.
        if "seq" in line:
            found[json.dumps(line["settings"])] = line
    for line in found.values():
        line["rows"] = (folder / "results" / line["run"] / "metrics.csv").read_text() if line["run"] else ""
    return found


def parsed(line: str) -> dict:
    """Returns a line of the ledger; empty for one that is torn."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return {}


def compare(halved: dict, whole: dict) -> None:
    """Checks how many cells trained how far, and that each has the rows of the whole grid up to there."""
    counts: dict = {}
    for name, cell in halved.items():
        if not whole[name]["rows"].startswith(cell["rows"]):
            raise Failed(f"{name}: the rows differ from the whole grid's")
        steps = cell["rows"].count("\n") - 1
        counts[cell["status"], steps] = counts.get((cell["status"], steps), 0) + 1
    if counts != EXPECTED:
        raise Failed(f"cells by status and steps are {counts}, but must be {EXPECTED}")
