"""Kills runs and damages their files: what is behind the newest checkpoint, pointers, that checkpoint, or any file.

All but the last is dropped or written again, so the resume must end with the bits of an undisturbed run. Damage of any
file may also be refused; once the file is back, the resume must end with the same bits.
"""

import json
import signal
from pathlib import Path

from trial import Failed, Trial, go_on, newest, nobody_left, only, runs, same_bits, summary

FRESH = ["tiny.toml", "-q", "checkpoint.keep_best=true", "checkpoint.keep=2"]
ROWS = ("metrics.csv", "timing.csv")
KINDS = ("rows", "copies of rows", "pointers", "newest checkpoint", "any file")
# What a power cut or a bad disk makes of a stretch of bytes.
DAMAGES = {
    "zeros": lambda random, stretch: bytes(len(stretch)),
    "ones": lambda random, stretch: b"\xff" * len(stretch),
    "random": lambda random, stretch: random.randbytes(len(stretch)),
    "a bit": lambda random, stretch: bytes([stretch[0] ^ 1 << random.randrange(8)]) + stretch[1:] if stretch else stretch,
    "line breaks": lambda random, stretch: b"\n" * len(stretch),
    "nothing": lambda random, stretch: b"",
}
POINTERS = ("", "step-999999\n", "step-000001\n", "\0" * 12)
MOST_STRIKES = 3


def run(trial: Trial) -> None:
    """Runs a trial: one to three times a kill, damage and a resume."""
    expected, took = trial.undisturbed("run", FRESH)
    for _ in range(trial.random.randint(1, MOST_STRIKES)):
        process = trial.start(go_on(trial.folder, FRESH))
        if process.wait_until(trial.random.uniform(0.3, 1) * took):
            process.signal(signal.SIGKILL)
        process.ends()
        nobody_left(trial.folder, 5)
        for found in runs(trial.folder / "results"):
            if summary(found)["status"] != "ok":
                strike(trial, found)
    trial.finish(go_on(trial.folder, FRESH))
    # A damaged checkpoint is said to be unusable, and another earlier one is kept in its place.
    loses = trial.kind in ("newest checkpoint", "any file")
    same_bits(only(runs(trial.folder / "results")), expected, saves_failed=loses)


def strike(trial: Trial, found: Path) -> None:
    """Damages files of a killed run."""
    saved = sorted(found.glob("checkpoint/step-*"))
    if trial.kind == "pointers":
        for path in (found / "checkpoint/latest", found / "checkpoint/best"):
            if saved and trial.random.random() < 0.6:
                text = trial.random.choice((*POINTERS, saved[0].name + "\n"))
                path.write_text(text)
                trial.note(f"{path.name} holds {text!r}")
                trial.hits += 1
    elif trial.kind == "newest checkpoint":
        if len(saved) > 1:
            damage(trial, trial.random.choice(files(saved[-1])), 0)
    elif trial.kind == "any file":
        refused_or_unseen(trial, found, trial.random.choice(files(found)))
    else:
        known = json.loads((newest(found) / "manifest.json").read_text())["meta"]["rows"] if saved else {}
        for name in ROWS:
            path = found / (name if trial.kind == "rows" else f"unsaved-{name}")
            if path.exists() and trial.random.random() < 0.7:
                damage(trial, path, known.get(path.name, {"bytes": 0})["bytes"])


def files(folder: Path) -> list[Path]:
    """Returns the files below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (".gitignore", "lock"))


def damage(trial: Trial, path: Path, start: int) -> None:
    """Damages a stretch of a file behind its first `start` bytes."""
    content = path.read_bytes()
    if len(content) <= start:
        return
    first = trial.random.randrange(start, len(content))
    last = min(len(content), first + trial.random.choice((1, 16, 64, 512, 4096)))
    kind = trial.random.choice(list(DAMAGES))
    damaged = content[:first] + DAMAGES[kind](trial.random, content[first:last]) + content[last:]
    path.write_bytes(damaged)
    trial.note(f"{kind} in bytes {first} to {last} of {path.relative_to(trial.folder)}, {start} of which are saved")
    trial.hits += damaged != content


def refused_or_unseen(trial: Trial, found: Path, path: Path) -> None:
    """Damages a file and resumes the run to its end; if that is refused, puts the file back."""
    content = path.read_bytes()
    damage(trial, path, 0)
    process = trial.start(["resume", str(found), "-q"])
    code = process.ends()
    if code in (1, 2) and process.said().strip():
        trial.note("refused")
        path.write_bytes(content)
    elif code != 0:
        raise Failed(f"the resume of a run whose {path.name} is damaged ended with {code}:\n{process.said()}")
