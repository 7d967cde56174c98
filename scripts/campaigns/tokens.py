"""Interrupts runs while they tokenize text, damages what they leave, and compares the tokens and the run in the end.

With `data.shuffle = "blocks"`, runs train while their text is tokenized. A second run shares the work, and ends without
an interruption, whichever process has made the tokens."""

import hashlib
import random
import time
from pathlib import Path

from interruptions import strike_at
from trial import Failed, Trial, go_on, only, runs, same_bits

STRIKES = ("kill -9", "SIGTERM", "SIGSTOP, kill -9")
# What happens to the unfinished tokens and their journal between two commands.
DAMAGE = ("nothing", "cut", "changed", "removed")
ORDERS = ("all", "blocks")
KINDS = tuple(f"{order}: {damage}: {strike}" for order in ORDERS for damage in DAMAGE for strike in STRIKES)

DOCUMENTS = 20_000
WORDS = "the a of rain sun tree stone river walks sees finds gives old new green small house road night day".split()


def run(trial: Trial) -> None:
    """Runs a trial: up to six strikes, damage after each, and a command that ends."""
    order, damage, strike = trial.kind.split(": ")
    text, expected, entry, took = trial.reference(f"tokens-{order}", lambda folder: undisturbed(trial, folder, order))
    cache = trial.folder / "cache"
    fresh = command(text, order)
    beside = trial.folder / "beside"
    beside.mkdir()
    (beside / "tiny.toml").symlink_to(trial.folder / "tiny.toml")
    other = trial.start(fresh, variables(cache), cwd=beside) if order == "blocks" and damage == "nothing" else None
    for _ in range(trial.random.randint(1, 6)):
        strike_at(trial, trial.start(go_on(trial.folder, fresh), variables(cache)), strike, took)
        harm(trial, cache, damage)
    end(trial, trial.start(go_on(trial.folder, fresh), variables(cache)))
    same_bits(only(runs(trial.folder / "results")), expected)
    if other:
        end(trial, other)
        same_bits(only(runs(beside / "results")), expected)
    if order == "blocks":
        # A run that ended before its text was tokenized leaves the rest to the next one, which waits for all of it.
        end(trial, trial.start(show(text, order), variables(cache)))
    if entry_hash(cache) != entry:
        raise Failed("the cached tokens differ from those that were made without interruption")
    if left := [path.name for path in (cache / "tokens").iterdir() if path.suffix in (".unfinished", ".journal")]:
        raise Failed(f"unfinished work is left: {left}")


def undisturbed(trial: Trial, folder: Path, order: str):
    """Writes the text; returns its path, an undisturbed run, the hash of its tokens, and the seconds that it took."""
    text = folder / "text.txt"
    drawn = random.Random("text")
    with text.open("w") as file:
        for number in range(DOCUMENTS):
            file.write(f"{number} " + " ".join(drawn.choices(WORDS, k=drawn.randint(20, 600))) + "\n##\n")
    began = time.monotonic()
    end(trial, trial.start(command(text, order), variables(folder / "cache"), cwd=folder))
    took = time.monotonic() - began
    end(trial, trial.start(show(text, order), variables(folder / "cache"), cwd=folder))
    return text, only(runs(folder / "results")), entry_hash(folder / "cache"), took


def command(text: Path, order: str) -> list[str]:
    """Returns the command that trains on a text."""
    return [
        "tiny.toml",
        "-q",
        f"data.corpus={text}",
        "data.tokenizer=gpt2",
        f"data.shuffle={order}",
        'data.document_separator="##"',
        "training.steps=8",
        "generation.interval=0",
        "validation.steps=2",
    ]


def show(text: Path, order: str) -> list[str]:
    """Returns a command that waits for all tokens."""
    return ["data", "show", *(word for word in command(text, order) if word != "-q")]


def variables(cache: Path) -> dict[str, str]:
    """Returns the environment of a command."""
    return {"XRUN_CACHE": str(cache)}


def end(trial: Trial, process) -> None:
    """Waits for a command, which must end well."""
    if code := process.ends():
        raise Failed(f"a command ended with {code}:\n{process.said()}")


def harm(trial: Trial, cache: Path, damage: str) -> None:
    """Damages one of the files that an interrupted command left."""
    found = sorted(path for ending in ("unfinished", "journal") for path in cache.glob(f"tokens/*.{ending}"))
    found = [path for path in found if path.stat().st_size]
    if damage == "nothing" or not found:
        return
    path = trial.random.choice(found)
    at = trial.random.randrange(path.stat().st_size)
    trial.note(f"{damage}: {path.suffix} at byte {at} of {path.stat().st_size}")
    if damage == "removed":
        path.unlink()
        return
    with path.open("r+b") as file:
        if damage == "cut":
            file.truncate(at)
        else:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << trial.random.randrange(8)]))


def entry_hash(cache: Path) -> str:
    """Returns the hash of the only entry of a cache."""
    entries = list(cache.glob("tokens/*.tokens"))
    if len(entries) != 1:
        raise Failed(f"the cache has {len(entries)} entries, but there must be one")
    return hashlib.sha256(entries[0].read_bytes()).hexdigest()
