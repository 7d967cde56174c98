"""Successive halving of 27 cells, struck at random moments: the rows of the whole grid as far as each cell trained."""

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
    "sweep.samples=27",
    "generation.samples=0",
    "-q",
]
RUNGS = [*GRID, "sweep.rungs=[8, 24]"]
# 27, 9 and 3 cells, of which the others end at a rung.
EXPECTED = {("dropped", 8): 18, ("dropped", 24): 6, ("ok", 60): 3}
MOST_STRIKES = 6


def run(trial: Trial) -> None:
    """A trial: a sweep with rungs, struck several times and started again until it has ended."""
    strike = trial.random.choice(list(STRIKES))
    trial.what = f"halving: {strike}"
    whole = trial.reference("whole grid", lambda folder: swept(trial, folder, GRID))
    halved = trial.reference("halving", lambda folder: timed(trial, folder))
    undisturbed, took = halved
    compare(undisturbed, whole)
    for _ in range(trial.random.randint(1, MOST_STRIKES)):
        # What is left takes less from strike to strike.
        struck_child(trial, trial.start(RUNGS), strike, took * trial.random.random())
    for _ in range(12):
        # A cell whose run was killed is open until the next sweep.
        if trial.start(RUNGS).ends() == 0:
            break
    nobody_left(trial.folder, 5)
    found = cells(trial.folder)
    compare(found, whole)
    for name, cell in undisturbed.items():
        if found[name]["status"] != cell["status"]:
            raise Failed(f"{name} is {found[name]['status']}, and {cell['status']} undisturbed")


def swept(trial: Trial, folder: Path, arguments: list[str]) -> dict:
    """The cells of an undisturbed sweep."""
    trial.finish(arguments, cwd=folder)
    return cells(folder)


def timed(trial: Trial, folder: Path) -> tuple[dict, float]:
    """The cells of an undisturbed sweep with rungs, and the seconds that it took."""
    began = time.monotonic()
    return swept(trial, folder, RUNGS), time.monotonic() - began


def cells(folder: Path) -> dict:
    """Status, steps and rows of every cell by the last line of the ledger, by its settings."""
    found = {}
    files = (folder / "results/sweeps/ledger").glob("*.jsonl")
    lines = [(json.loads(line), file.name) for file in files for line in file.read_text().splitlines()]
    for line, _ in sorted(lines, key=lambda one: (one[0].get("seq", 0), one[1])):
        # The first line of a file names its process.
        if "seq" in line:
            found[json.dumps(line["settings"])] = line
    for line in found.values():
        line["rows"] = (folder / "results" / line["run"] / "metrics.csv").read_text() if line["run"] else ""
    return found


def compare(halved: dict, whole: dict) -> None:
    """Checks that the right number of cells trained how far, each with the rows of the whole grid."""
    counts: dict = {}
    for name, cell in halved.items():
        if not whole[name]["rows"].startswith(cell["rows"]):
            raise Failed(f"{name}: the rows are not those of the whole grid")
        steps = cell["rows"].count("\n") - 1
        counts[cell["status"], steps] = counts.get((cell["status"], steps), 0) + 1
    if counts != EXPECTED:
        raise Failed(f"cells by status and steps: {counts}, not {EXPECTED}")
