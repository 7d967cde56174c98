"""Kills runs and damages what is behind their newest checkpoint: rows, copies of dropped rows, and pointers.

All of it is dropped or written again, so the resume must end with the bits of an undisturbed run.
"""

import json
import signal
from pathlib import Path

from trial import Trial, go_on, newest, nobody_left, only, runs, same_bits

FRESH = ["tiny.toml", "-q", "metrics.plots=false", "checkpoint.keep_best=true", "checkpoint.keep=2"]
ROWS = ("metrics.csv", "timing.csv")
# What a power cut or a bad disk makes of a stretch of bytes.
DAMAGES = {
    "zeros": lambda random, stretch: bytes(len(stretch)),
    "ones": lambda random, stretch: b"\xff" * len(stretch),
    "random": lambda random, stretch: random.randbytes(len(stretch)),
    "a bit": lambda random, stretch: bytes([stretch[0] ^ 1 << random.randrange(8)]) + stretch[1:] if stretch else stretch,
    "line breaks": lambda random, stretch: b"\n" * len(stretch),
    "nothing": lambda random, stretch: b"",
}


def run(trial: Trial) -> None:
    """Runs a trial: a kill, damage, and a resume; sometimes twice."""
    expected, took = trial.undisturbed("run", FRESH)
    kinds = []
    for _ in range(trial.random.randint(1, 2)):
        process = trial.start(go_on(trial.folder, FRESH))
        if process.wait_until(trial.random.uniform(0.3, 1) * took):
            process.signal(signal.SIGKILL)
        process.ends()
        nobody_left(trial.folder, 5)
        for found in runs(trial.folder / "results"):
            if json.loads((found / "summary.json").read_text())["status"] != "ok":
                kinds += strike(trial, found)
    trial.what = " and ".join(sorted(set(kinds))) or "nothing behind a checkpoint"
    trial.finish(go_on(trial.folder, FRESH))
    same_bits(only(runs(trial.folder / "results")), expected)


def strike(trial: Trial, found: Path) -> list[str]:
    """Damages files of a killed run; returns what was damaged."""
    saved = list(found.glob("checkpoint/step-*"))
    known = json.loads((newest(found) / "manifest.json").read_text())["meta"]["rows"] if saved else {}
    struck = []
    for file in (*ROWS, *(f"unsaved-{rows}" for rows in ROWS)):
        path = found / file
        if not path.exists() or trial.random.random() < 0.3:
            continue
        content = path.read_bytes()
        start = known.get(file, {"bytes": 0})["bytes"]
        if len(content) <= start:
            continue
        first = trial.random.randrange(start, len(content))
        last = min(len(content), first + trial.random.choice((1, 16, 64, 512, 4096)))
        kind = trial.random.choice(list(DAMAGES))
        path.write_bytes(content[:first] + DAMAGES[kind](trial.random, content[first:last]) + content[last:])
        trial.note(f"{kind} in bytes {first} to {last} of {file}, {start} of which are saved")
        trial.hits += 1
        struck.append("rows" if file in ROWS else "copies of rows")
    for pointer in ("latest", "best"):
        path = found / "checkpoint" / pointer
        if saved and trial.random.random() < 0.3:
            text = trial.random.choice(("", "step-999999\n", "step-000001\n", "\0" * 12, min(saved).name + "\n"))
            path.write_text(text)
            trial.note(f"{pointer} holds {text!r}")
            trial.hits += 1
            struck.append("pointers")
    return struck
