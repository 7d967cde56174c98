"""Kills forks, imports and runs with initial weights, most of them before their first checkpoint.

Each must end with the bits of an undisturbed run of the same origin, or be refused if its origin is gone.
"""

import shutil
import signal
import time
from pathlib import Path

from trial import Failed, Trial, newest, nobody_left, only, runs, same_bits, summary

KEYS = ["training.steps=60", "optimizer.lr=2e-3", "metrics.plots=false", "generation.samples=0", "-q"]
PARENT = ["tiny.toml", "training.steps=20", "checkpoint.keep=9", "metrics.plots=false", "generation.samples=0", "-q"]
TEXT = ["data.corpus=stories", "data.train_tokens=20000", "data.validation_tokens=600", "training.local_batch_size=4"]
# What the run begins from: its command, given the parent run and the imported one.
ORIGINS = {
    "initial values": lambda parent, imported: ["tiny.toml"],
    "weights of a folder": lambda parent, imported: ["tiny.toml", "model.init_from=hf", "model.n_kv_heads=2"],
    "newest checkpoint": lambda parent, imported: ["resume", parent, "--fork"],
    "earlier checkpoint": lambda parent, imported: ["resume", parent, "--fork", "--at", "14"],
    "imported model": lambda parent, imported: ["resume", imported, "--fork", *TEXT, "engine.device=cpu", "engine.threads=1"],
}
# When the run saves: never before its end, seldom, or often.
SAVES = {"at the end": "0", "seldom": "40", "often": "5"}
MOST_STRIKES = 3
KINDS = tuple(f"{origin}, saves {saves}" for origin in ORIGINS for saves in SAVES)


def run(trial: Trial) -> None:
    """Runs a trial: one origin, one to three kills, and resumes to the end."""
    origin, saves = trial.kind.split(", saves ")
    loses = trial.random.random() < 0.15
    if loses:
        trial.what += ", loses its origin"
    prepared, parent, imported = trial.reference("parents", lambda folder: prepare(trial, folder))
    expected, took = trial.reference(
        f"{origin}, {saves}", lambda folder: undisturbed(trial, folder, prepared, (parent, imported), origin, saves)
    )
    shutil.copytree(prepared, trial.folder, dirs_exist_ok=True)
    known = everything(trial.folder)
    fresh = command(origin, saves, parent, imported)
    for _ in range(trial.random.randint(1, MOST_STRIKES)):
        process = trial.start(next_command(trial, fresh, known))
        # Most of the time passes before the first step, so half of the kills come after the first row.
        started = trial.random.random() < 0.5 and wait_for_row(trial, process, known)
        moment = process.seconds() + trial.random.random() * 0.3 * took if started else trial.random.random() * took
        if process.wait_until(moment):
            process.signal(signal.SIGKILL)
            trial.hits += 1
        process.ends()
    nobody_left(trial.folder, 5)
    if loses and refused_without_origin(trial, origin, parent, imported, known):
        return
    trial.finish(next_command(trial, fresh, known))
    found = only([path for path in everything(trial.folder) if path not in known])
    same_bits(found, expected)
    # The hash of a recipe with initial weights covers the path of their folder.
    hashed = () if origin == "weights of a folder" else ("recipe_hash",)
    for key in ("forked_from", "losses_before", *hashed):
        if summary(found).get(key) != summary(expected).get(key):
            raise Failed(f"{key} is {summary(found).get(key)!r}, but {summary(expected).get(key)!r} in the undisturbed run")


def command(origin: str, saves: str, parent: str, imported: str) -> list[str]:
    """Returns the command that begins the run."""
    return [*ORIGINS[origin](parent, imported), f"checkpoint.interval={SAVES[saves]}", *KEYS]


def everything(folder: Path) -> list[Path]:
    """Returns all runs in a folder."""
    return runs(folder / "results", "*")


def next_command(trial: Trial, fresh: list[str], known: list[Path]) -> list[str]:
    """Returns the command that resumes the new run, or begins it if none has got as far as its summary."""
    found = [path for path in everything(trial.folder) if path not in known]
    return ["resume", str(only(found)), "-q"] if found else fresh


def wait_for_row(trial: Trial, process, known: list[Path]) -> bool:
    """Waits for the first row of the new run; returns whether it came before the process ended."""
    while not process.is_over():
        for path in everything(trial.folder):
            rows = path / "metrics.csv"
            if path not in known and rows.exists() and rows.read_bytes().count(b"\n") > 1:
                return True
        time.sleep(0.0005)
    return False


def refused_without_origin(trial: Trial, origin: str, parent: str, imported: str, known: list[Path]) -> bool:
    """Removes the origin of a run without a checkpoint; returns whether there was one. The resume must be refused."""
    found = [path for path in everything(trial.folder) if path not in known]
    if not found or list(found[0].glob("checkpoint/step-*")) or origin == "initial values":
        return False
    gone = {
        "weights of a folder": trial.folder / "hf",
        "newest checkpoint": newest(Path(trial.folder / parent)),
        "earlier checkpoint": Path(trial.folder / parent) / "checkpoint/step-000014",
        "imported model": Path(trial.folder / imported) / "checkpoint",
    }[origin]
    shutil.rmtree(gone)
    rows = (found[0] / "metrics.csv").read_bytes() if (found[0] / "metrics.csv").exists() else b""
    process = trial.start(["resume", str(found[0]), "-q"])
    if (code := process.ends()) != 2:
        raise Failed(f"without its origin, the run is resumed with {code}:\n{process.said()}")
    if rows and (found[0] / "metrics.csv").read_bytes() != rows:
        raise Failed("a refused resume changed metrics.csv")
    return True


def prepare(trial: Trial, folder: Path) -> tuple[Path, str, str]:
    """Trains a parent, exports it, and imports it again; returns the folder and both runs' paths in it."""
    trial.finish(PARENT, cwd=folder)
    parent = only(runs(folder / "results"))
    trial.finish(["export", str(parent), "--to", "hf"], cwd=folder)
    trial.finish(["import", "hf", "--name", "imported"], cwd=folder)
    imported = only(runs(folder / "results", "imported"))
    return folder, str(parent.relative_to(folder)), str(imported.relative_to(folder))


def undisturbed(trial, folder, prepared, parents, origin, saves) -> tuple[Path, float]:
    """Trains an undisturbed run of an origin; returns it and the seconds that it took."""
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    known, began = everything(folder), time.monotonic()
    trial.finish(command(origin, saves, *parents), cwd=folder)
    return only([path for path in everything(folder) if path not in known]), time.monotonic() - began
