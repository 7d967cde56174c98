"""Kills runs while checkpoints are written in the background; each must resume to the same bits."""

import re
import signal
from pathlib import Path

from trial import RECIPE, Failed, Trial, go_on, newest, nobody_left, only, runs, same_bits

# Large enough that a write lasts several steps, with a save every other step.
LARGER = RECIPE.replace("dim = 16", "dim = 64").replace("interval = 7", 'interval = 2\nbackground = "always"')
# Evaluations would take longer than the steps between them.
LARGER = LARGER.replace("[validation]\ninterval = 8", "[validation]\nsteps = 1")
FRESH = ["saves.toml", "-q", "generation.samples=0", "metrics.plots=false", "training.steps=120"]
SHARDED = ["parallelism.world_size=2", "parallelism.shard=optimizer"]
# What is trained: its keys. A run that keeps its best checkpoint also saves after evaluations.
KEYS = {
    "one rank": [],
    "two ranks, sharded": SHARDED,
    "best and average": ["checkpoint.keep_best=true", "validation.interval=3", "ema.decay=0.9"],
}
KINDS = tuple(KEYS)


def run(trial: Trial) -> None:
    """Runs a trial: one kill, and a resume to the end."""
    kind = trial.kind
    fresh = [*FRESH, *KEYS[kind]]
    expected, took = trial.reference(kind, lambda folder: undisturbed(trial, folder, fresh))
    (trial.folder / "saves.toml").write_text(LARGER)
    trial.what = f"{kind}: before a run"
    process = trial.start(fresh)
    if process.wait_until(trial.random.random() * took):
        process.signal(signal.SIGKILL)
        trial.hits += 1
    process.ends()
    nobody_left(trial.folder, 5)
    for found in renamed(trial.folder):
        trial.what = f"{kind}: {'during' if is_written(found) else 'between'} writes"
        trial.note(trial.what)
        claims_hold(found)
    trial.finish(go_on(trial.folder, fresh, "saves"))
    same_bits(only(renamed(trial.folder)), expected)


def undisturbed(trial: Trial, folder: Path, fresh: list[str]) -> tuple[Path, float]:
    """Trains an undisturbed run; returns it and the seconds from its start to its end."""
    (folder / "saves.toml").write_text(LARGER)
    process = trial.start(fresh, cwd=folder)
    if (code := process.ends()) != 0:
        raise Failed(f"the undisturbed run ended with {code}:\n{process.said()}")
    return only(renamed(folder)), process.seconds()


def renamed(folder: Path) -> list[Path]:
    """Returns the runs of this campaign's recipe in a folder."""
    return runs(folder / "results", "saves")


def is_written(run_folder: Path) -> bool:
    """Returns whether a checkpoint was being written when the process was killed."""
    return any(path.name != ".tmp-probe" for path in (run_folder / "checkpoint").glob(".tmp-*"))


def claims_hold(run_folder: Path) -> None:
    """Checks that the newest checkpoint is at least as new as the last one that the log says was saved.

    Older checkpoints may have been removed since.
    """
    said = [int(step) for step in re.findall(r"saved after step (\d+):", (run_folder / "log").read_text())]
    if said and int(newest(run_folder).name[5:]) < said[-1]:
        raise Failed(f"the log says that step {said[-1]} was saved, but the newest checkpoint is {newest(run_folder).name}")
