"""One trial: a folder with a recipe, processes of the binary in it, and what they leave."""

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

RECIPE = """
[model]
dim = 16
n_layers = 1
n_heads = 2
head_dim = 8
ffn_dim = 32
dropout = 0.1
[training]
seq_len = 32
local_batch_size = 4
steps = 60
seed = 3
[optimizer]
lr = 3e-3
[lr_scheduler]
warmup_steps = 4
[data]
tokenizer = "byte"
train_tokens = 20_000
validation_tokens = 600
[checkpoint]
interval = 7
[validation]
interval = 8
[generation]
interval = 20
samples = 1
tokens = 8
[engine]
# Bits are compared: on a GPU two runs may choose other algorithms of products.
device = "cpu"
threads = 1
"""
STEPS = 60

# Seconds that anything here may take on a busy machine: longer is a hang.
PATIENCE = 180.0


class Failed(Exception):
    """Something does not hold."""


class Trial:
    """A trial and its folder."""

    def __init__(self, xrun: Path, folder: Path, seed: str, references: dict):
        self.xrun, self.folder, self.seed = xrun, folder, seed
        self.random = random.Random(seed)
        # Shared by the trials of a campaign: undisturbed results and how long they took.
        self.references = references
        self.what = "?"
        self.hits = 0
        self.events: list[str] = []
        self._close = []
        folder.mkdir(parents=True)
        (folder / "tiny.toml").write_text(RECIPE)

    def note(self, event: str) -> None:
        """Remembers what happened, for a failure's line."""
        self.events.append(event)

    def at_end(self, action) -> None:
        """Calls this when the trial is over."""
        self._close.append(action)

    def close(self) -> None:
        """Removes the folder."""
        for action in reversed(self._close):
            action()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, arguments: list[str], variables: dict[str, str] | None = None, cwd: Path | None = None):
        """Starts the binary, in a process group of its own; what it says goes into `said-N`."""
        self.note("$ xrun " + " ".join(arguments))
        number = len(list(self.folder.glob("said-*")))
        process = Process(self, arguments, variables or {}, cwd or self.folder, self.folder / f"said-{number}")
        self.at_end(process.kill)
        return process

    def finish(self, arguments: list[str], cwd: Path | None = None, codes: tuple[int, ...] = (0,)) -> str:
        """Runs the binary to its end; returns what it said."""
        process = self.start(arguments, cwd=cwd)
        code = process.ends()
        if code not in codes:
            raise Failed(f"`xrun {' '.join(arguments)}` ended with {code}:\n{process.said()}")
        return process.said()

    def reference(self, name: str, make):
        """Returns what `make` made in a folder of its own, once per campaign."""
        if name not in self.references:
            folder = Path(tempfile.mkdtemp(prefix="reference-", dir=self.folder.parent))
            (folder / "tiny.toml").write_text(RECIPE)
            self.references[name] = make(folder)
        return self.references[name]

    def undisturbed(self, name: str, arguments: list[str]):
        """Returns the run folder of an undisturbed run, and the seconds that it took."""

        def make(folder: Path) -> tuple[Path, float]:
            began = time.monotonic()
            self.finish(arguments, cwd=folder)
            return only(runs(folder / "results")), time.monotonic() - began

        return self.reference(name, make)


class Process:
    """A process of the binary."""

    def __init__(self, trial: Trial, arguments: list[str], variables: dict[str, str], cwd: Path, said: Path):
        self.trial, self._said = trial, said
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with said.open("wb") as file:
            self.child = subprocess.Popen(
                [trial.xrun, *arguments],
                cwd=cwd,
                env=environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )
        self.began = time.monotonic()

    def said(self) -> str:
        """What it said on stderr. Nothing may have panicked."""
        text = self._said.read_text(errors="replace")
        if "panicked at" in text:
            raise Failed(f"a panic:\n{text}")
        return text

    def seconds(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self.began

    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.child.poll() is not None

    def wait_until(self, moment: float) -> bool:
        """Waits until so many seconds after its start; whether it was still there."""
        while time.monotonic() - self.began < moment:
            if self.is_over():
                return False
            time.sleep(0.0005)
        return not self.is_over()

    def signal(self, number: int, group: bool = False) -> None:
        """Sends a signal."""
        if self.is_over():
            return
        try:
            (os.killpg if group else os.kill)(self.child.pid, number)
        except ProcessLookupError:
            pass

    def ends(self, limit: float = PATIENCE) -> int:
        """Waits for the end; returns the exit code, negative for a signal."""
        try:
            code = self.child.wait(limit)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"it hangs: not over after {limit:.0f} s:\n{self.said()}") from late
        self.trial.note(f"ended with {code}: {(self.said().strip().splitlines() or [''])[-1][:300]}")
        return code

    def kill(self) -> None:
        """Ends it, however it is."""
        if not self.is_over():
            self.signal(signal.SIGKILL, group=True)
            self.child.wait()


def children(pid: int) -> list[int]:
    """The children of a process, in the order in which they were started."""
    try:
        return sorted(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    except OSError:
        return []


def strangers(folder: Path) -> list[int]:
    """Processes that work in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "cwd").readlink().is_relative_to(folder):
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def nobody_left(folder: Path, limit: float) -> None:
    """Waits until no process works in a folder."""
    began = time.monotonic()
    while left := strangers(folder):
        if time.monotonic() - began > limit:
            raise Failed(f"processes {left} are left after {limit:.0f} s")
        time.sleep(0.02)


def runs(results: Path, recipe: str = "tiny") -> list[Path]:
    """Run folders with a summary, in order of their names; those of sweeps and comparisons among them."""
    return sorted(path.parent for path in results.glob(f"{recipe}/*/summary.json"))


def only(found: list[Path]) -> Path:
    """The one run."""
    if len(found) != 1:
        raise Failed(f"{len(found)} runs where one is expected: {found}")
    return found[0]


def summary(run: Path) -> dict:
    """The summary of a run."""
    return json.loads((run / "summary.json").read_text())


def newest(run: Path) -> Path:
    """The newest checkpoint of a run."""
    found = sorted((run / "checkpoint").glob("step-*"))
    if not found:
        raise Failed(f"{run.name} has no checkpoint")
    return found[-1]


def same_bits(run: Path, expected: Path, weights: bool = True) -> None:
    """Checks that a run ended as another one: rows, weights, moments, summary."""
    mine, other = summary(run), summary(expected)
    for key in ("status", "steps", "tokens_seen", "train_loss", "val_loss", "samples"):
        if mine.get(key) != other.get(key):
            raise Failed(f"{key} is {mine.get(key)!r}, and {other.get(key)!r} undisturbed")
    pairs = [(run / "metrics.csv", expected / "metrics.csv")]
    if weights:
        mine, other = newest(run), newest(expected)
        pairs += [(mine / name, other / name) for name in ("model.safetensors", "optimizer.safetensors")]
    for ours, theirs in pairs:
        if ours.read_bytes() != theirs.read_bytes():
            raise Failed(f"{ours.name} differs")


def go_on(folder: Path, fresh: list[str], recipe: str = "tiny") -> list[str]:
    """The command that goes on with what was left in a folder."""
    found = runs(folder / "results", recipe)
    if not found:
        return fresh
    status = summary(only(found))["status"]
    return ["resume", found[0].name] if status != "ok" else ["resume", str(found[0])]
