"""Interrupts runs and resumes them elsewhere: other threads, another launcher, a moved folder, another binary.

The bits must be those of an undisturbed run.
"""

import signal
from pathlib import Path

from trial import Failed, Trial, nobody_left, only, runs, same_bits

FRESH = ["tiny.toml", "-q", "parallelism.world_size=2", "checkpoint.keep=2"]
STRIKES = {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM}
CHANGES = ("threads", "launcher", "folder", "binary", "everything")
KINDS = tuple(f"{change}: {strike}" for change in CHANGES for strike in STRIKES)
MOST_STRIKES = 5


def run(trial: Trial) -> None:
    """Runs a trial: interruptions, each followed by a resume elsewhere."""
    change, strike = trial.kind.split(": ")
    expected, took = trial.undisturbed("run", FRESH)
    for _ in range(trial.random.randint(1, MOST_STRIKES)):
        process = start(trial, change)
        if process.wait_until(trial.random.random() * took):
            process.signal(STRIKES[strike])
            trial.hits += 1
        process.ends()
        nobody_left(trial.folder, 30)
    process = start(trial, change)
    if (code := process.ends()) != 0:
        raise Failed(f"the last resume ended with {code}:\n{process.said()}")
    same_bits(only(found(trial.folder)), expected)


def found(folder: Path) -> list[Path]:
    """Returns the runs in a folder, wherever the results are."""
    return [run for results in folder.glob("results*") for run in runs(results)]


def start(trial: Trial, change: str):
    """Starts or resumes the run with something changed."""
    changes = CHANGES[:-1] if change == "everything" else (change,)
    place = next(trial.folder.glob("results*"), trial.folder / "results")
    if "folder" in changes and place.exists():
        place = place.rename(trial.folder / f"results-{trial.random.randrange(10**9)}")
    resumed = runs(place)
    keys = ["resume", str(resumed[0]), "-q"] if resumed else FRESH
    if "threads" in changes and resumed:
        keys = [*keys, f"engine.threads={trial.random.randint(1, 3)}"]
    if "launcher" in changes and resumed:
        keys = [*keys, f"parallelism.launcher={trial.random.choice(('thread', 'process'))}"]
    if "binary" in changes and trial.other and trial.random.random() < 0.5:
        return trial.start(["--results", str(place), *keys], xrun=trial.other)
    return trial.start(["--results", str(place), *keys])
