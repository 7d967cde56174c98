"""Kills commands at one file operation, or lets it and perhaps all later ones fail; the command again must end alike.

Whatever a command writes, the operation is chosen among all that it does: the writes, renames and syncs of a save, the
removals of pruning, the entries of the token cache, the lines of a ledger, exports, imports, kept runs. Exit code 0 means
that everything is there. Needs root and /dev/fuse.
"""

import errno
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from disks import holds
from fuse import Behavior, Faults, Mounted
from interruptions import cells
from network import RUN, SWEEP, missing
from trial import Failed, Trial, go_on, nobody_left, only, runs, same_bits, summary

FAULTS = {
    "killed before": (Faults.KILL_BEFORE, 0),
    "killed after": (Faults.KILL_AFTER, 0),
    "one EIO": (Faults.ONCE, errno.EIO),
    "one ENOSPC": (Faults.ONCE, errno.ENOSPC),
    "EIO from then on": (Faults.FROM_THEN_ON, errno.EIO),
    "quota (EDQUOT)": (Faults.FROM_THEN_ON, errno.EDQUOT),
    "read-only (EROFS)": (Faults.FROM_THEN_ON, errno.EROFS),
    "stale (ESTALE)": (Faults.FROM_THEN_ON, errno.ESTALE),
}
SHORT = ["metrics.interval=1", "training.steps=3", "lr_scheduler.warmup_steps=1", "-q", "checkpoint.keep=0"]
TRIES = 8


@dataclass
class Scenario:
    """A command, and what must be the same after it."""

    # The arguments, given the folder in which it is run.
    command: Callable[[Path], list[str]]
    # What is compared, given the folder; None if the command left nothing.
    result: Callable[[Path], object]
    # Changes that are made before the command is given again, because it refuses to replace what is there.
    clear: Callable[[Path], None] = lambda folder: None


def hashes(pattern: str, without: tuple[str, ...] = ()) -> Callable[[Path], object]:
    """Returns a function that hashes the files below the folders of a pattern, without what a killed command left.

    `keep --prune` removes that.
    """

    def result(folder: Path) -> object:
        found = {}
        for top in folder.glob(pattern):
            for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
                is_left = any(part.startswith((".keeping-", ".writing-")) for part in path.parts)
                if path.is_file() and path.name not in without and not is_left:
                    found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found or None

    return result


def parent(folder: Path) -> str:
    """Returns the path of the prepared run."""
    return str(only(runs(folder / "results", "parent")).relative_to(folder))


def imported(folder: Path) -> object:
    """Returns the weights of the imported run, if there is one."""
    found = sorted(folder.glob("results/imported/*/checkpoint/step-*/model.safetensors"))
    return [path.read_bytes() for path in found[-1:]] or None


def cached(folder: Path) -> object:
    """Returns the rows of the newest run of the text, if it is complete."""
    found = [path for path in runs(folder / "results", "text") if summary(path)["status"] == "ok"]
    return (found[-1] / "metrics.csv").read_bytes() if found else None


SCENARIOS = {
    "export": Scenario(
        lambda folder: ["export", parent(folder), "--to", "hf"],
        hashes("hf"),
        lambda folder: shutil.rmtree(folder / "hf", ignore_errors=True),
    ),
    "import": Scenario(lambda folder: ["import", "prepared-hf", "--name", "imported"], imported),
    "data": Scenario(
        lambda folder: ["data", "--corpus", "text.txt", "--tokenizer", "byte", "--out", "shards"],
        hashes("shards"),
        lambda folder: shutil.rmtree(folder / "shards", ignore_errors=True),
    ),
    "token cache": Scenario(lambda folder: ["text.toml", "data.corpus=text.txt", *SHORT], cached),
    "keep": Scenario(lambda folder: ["keep", parent(folder)], hashes("results/kept", ("kept.toml",))),
    "prune": Scenario(lambda folder: ["keep", "--prune", "--yes"], lambda folder: not any(folder.glob("results/kept/*/*/*"))),
}
KINDS = tuple(f"{name}: {fault}" for name in ("run", "run", "sweep", *SCENARIOS) for fault in FAULTS)


def run(trial: Trial) -> None:
    """Runs a trial: one command with a fault at one of its operations, and the command again."""
    name, fault = trial.kind.split(": ")
    mode, error = FAULTS[fault]
    prepared = trial.reference("prepared", lambda folder: prepare(trial, folder))
    expected, changes = trial.reference(name, lambda folder: undisturbed(trial, folder, prepared, name))
    mounted = mount(trial, trial.folder, prepared, name)
    folder = mounted.mounts[0]
    # Other commands would measure the machine again for each trial, if the cache were new.
    process_environment = {"XRUN_CACHE": str(folder / "cache")} if name == "token cache" else {}
    for _ in range(trial.random.randint(1, 2)):
        number = trial.random.randint(1, changes)
        mounted.faults.set(mode, number, error)
        trial.note(f"{fault} at change {number} of about {changes}")
        process = trial.start(command(folder, name), cwd=folder, variables=process_environment)
        code, said = process.ends(), process.said()
        nobody_left(trial.folder, 60)
        hits = mounted.faults.get()[4]
        mounted.faults.set(Faults.NONE)
        trial.hits += min(hits, 1)
        trial.events += mounted.log.read_text().splitlines()[:40]
        if "the server failed" in mounted.log.read_text():
            raise RuntimeError(mounted.log.read_text())
        if code == 0:
            same(name, folder, expected, trial, mode == Faults.ONCE)
        elif code > 0 and not said.strip():
            raise Failed(f"exit code {code} without a word")
        elif name == "run" and code > 0 and mode == Faults.ONCE and runs(folder / "results"):
            # If every write fails, not even the summary can say so.
            holds(only(runs(folder / "results")), code, said)
        elif name == "data":
            no_part_is_trained_on(trial, folder, expected)
    for _ in range(TRIES):
        retry = ["--retry", "failed,killed"] if name == "sweep" else []
        process = trial.start([*command(folder, name), *retry], cwd=folder, variables=process_environment)
        if process.ends() == 0:
            break
        if name in SCENARIOS:
            SCENARIOS[name].clear(folder)
    else:
        raise Failed(f"the command fails without a fault:\n{process.said()}")
    nobody_left(trial.folder, 5)
    same(name, folder, expected, trial, mode == Faults.ONCE)


def command(folder: Path, name: str) -> list[str]:
    """Returns the arguments of a scenario's command."""
    if name == "run":
        return go_on(folder, RUN)
    return SWEEP if name == "sweep" else SCENARIOS[name].command(folder)


def same(name: str, folder: Path, expected: object, trial: Trial, saves_failed: bool) -> None:
    """Checks that a command left what an undisturbed one leaves."""
    if name == "run":
        same_bits(only(runs(folder / "results")), Path(str(expected)), saves_failed=saves_failed)
        return
    found = cells(trial, folder) if name == "sweep" else SCENARIOS[name].result(folder)
    if found != expected:
        raise Failed(f"{name}: exit code 0, but the result is {str(found)[:500]}, and undisturbed {str(expected)[:500]}")


def no_part_is_trained_on(trial: Trial, folder: Path, expected: object) -> None:
    """Checks that a run refuses shards that an interrupted command left, unless they are all there."""
    if SCENARIOS["data"].result(folder) not in (None, expected):
        process = trial.start(["plan", "tiny.toml", "data.corpus=shards"], cwd=folder)
        if process.ends() == 0:
            raise Failed(f"a plan takes a part of the shards:\n{[path.name for path in (folder / 'shards').iterdir()]}")


def mount(trial: Trial, folder: Path, prepared: Path, name: str) -> Mounted:
    """Mounts a file system that holds what a command needs."""
    mounted = Mounted(folder / "disk", Behavior(), trial.seed)
    trial.at_end(mounted.close)
    backing = mounted.backing
    for recipe in ("tiny.toml", "text.toml"):
        shutil.copy(prepared / recipe, backing / recipe)
    if name in SCENARIOS:
        shutil.copytree(prepared, backing, dirs_exist_ok=True)
    if name != "prune":
        shutil.rmtree(backing / "results/kept", ignore_errors=True)
    return mounted


def prepare(trial: Trial, folder: Path) -> Path:
    """Trains and keeps a run, exports it and writes a text."""
    recipe = (folder / "tiny.toml").read_text()
    for name in ("parent", "text"):
        (folder / f"{name}.toml").write_text(recipe)
    trial.finish(["parent.toml", "training.steps=10", "-q"], cwd=folder)
    trial.finish(["export", parent(folder), "--to", "prepared-hf"], cwd=folder)
    trial.finish(["keep", parent(folder)], cwd=folder)
    words = ["one", "two", "three", "four", "five", "six"]
    # Texts of less than 1 MiB are not cached.
    text = "\n\n".join(" ".join(words[(n * k) % 6] for k in range(1, 12)) for n in range(26_000))
    (folder / "text.txt").write_text(text)
    # A page that names none of the kept runs.
    (folder / "README.md").write_text("# Runs\n")
    return folder


def undisturbed(trial: Trial, folder: Path, prepared: Path, name: str) -> tuple[object, int]:
    """Runs a command without a fault; returns its result and the number of changes that it makes."""
    mounted = mount(trial, folder, prepared, name)
    mounted.faults.set(Faults.NONE)
    trial.finish(command(mounted.mounts[0], name), cwd=mounted.mounts[0])
    changes = mounted.faults.get()[3]
    if name == "run":
        kept = folder / "kept"
        shutil.copytree(only(runs(mounted.backing / "results")), kept)
        return kept, changes
    return cells(trial, mounted.backing) if name == "sweep" else SCENARIOS[name].result(mounted.backing), changes
