"""A trial: a folder with a recipe, xrun processes in it, and what they leave behind."""

import fcntl
import hashlib
import json
import os
import pickle
import random
import re
import select
import shutil
import signal
import subprocess
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
[metrics]
# Most of a short run's time would go into its plots.
plots = false
[engine]
# The CPU, because bits are compared and two runs on a GPU may choose different matmul algorithms.
device = "cpu"
threads = 1
"""
STEPS = 60

# Seconds that a process may take on a busy machine; anything longer counts as a hang.
PATIENCE = 180.0


class Failed(Exception):
    """Raised when a check fails."""


class Trial:
    """A trial, its folder and its random numbers."""

    def __init__(self, xrun: Path, folder: Path, seed: str, kind: str, other: Path | None = None):
        self.xrun, self.folder, self.seed = xrun, folder, seed
        # Another binary, for trials that resume with it.
        self.other = other
        self.random = random.Random(seed)
        # The kind of trial, one of the campaign's KINDS; `what` is its row in the table.
        self.kind = self.what = kind
        self.hits = 0
        self.events: list[str] = []
        self._close = []
        folder.mkdir(parents=True)
        (folder / "tiny.toml").write_text(RECIPE)

    def note(self, event: str) -> None:
        """Records an event for the report of a failure."""
        self.events.append(event)

    def at_end(self, action) -> None:
        """Registers an action to call when the trial is over; the last one registered runs first."""
        self._close.append(action)

    def close(self) -> None:
        """Calls the registered actions and removes the folder."""
        for action in reversed(self._close):
            action()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(
        self,
        arguments: list[str],
        variables: dict[str, str] | None = None,
        cwd: Path | None = None,
        xrun: Path | None = None,
    ):
        """Starts xrun in its own process group; its stderr goes to the file `said-N`."""
        self.note("$ xrun " + " ".join(arguments))
        number = len(list(self.folder.glob("said-*")))
        command = [xrun or self.xrun, *arguments]
        process = Process(self, command, variables or {}, cwd or self.folder, self.folder / f"said-{number}")
        self.at_end(process.kill)
        return process

    def finish(self, arguments: list[str], cwd: Path | None = None, codes: tuple[int, ...] = (0,)) -> str:
        """Runs xrun to its end and returns its stderr."""
        process = self.start(arguments, cwd=cwd)
        code = process.ends()
        if code not in codes:
            raise Failed(f"`xrun {' '.join(arguments)}` ended with {code}:\n{process.said()}")
        return process.said()

    def reference(self, name: str, make):
        """Returns the result of `make`, which is called once, in a new folder, for all trials of a campaign."""
        # Trials of other processes use it too.
        folder = self.folder.parent / f"reference-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        folder.mkdir(exist_ok=True)
        made = folder / "made.pickle"
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                (folder / "tiny.toml").write_text(RECIPE)
                made.write_bytes(pickle.dumps(make(folder)))
        return pickle.loads(made.read_bytes())

    def undisturbed(self, name: str, arguments: list[str]):
        """Returns the folder of an undisturbed run and the seconds that it took."""

        def make(folder: Path) -> tuple[Path, float]:
            began = time.monotonic()
            self.finish(arguments, cwd=folder)
            return only(runs(folder / "results")), time.monotonic() - began

        return self.reference(name, make)


class Process:
    """A running xrun process."""

    def __init__(self, trial: Trial, command: list, variables: dict[str, str], cwd: Path, said: Path):
        self.trial, self._said = trial, said
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with said.open("wb") as file:
            self.child = subprocess.Popen(
                command,
                cwd=cwd,
                env=environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )
        self.began = time.monotonic()

    def said(self) -> str:
        """Returns its stderr; fails if there was a panic."""
        text = self._said.read_text(errors="replace")
        if "panicked at" in text:
            raise Failed(f"a panic:\n{text}")
        return text

    def seconds(self) -> float:
        """Returns the seconds since its start."""
        return time.monotonic() - self.began

    def is_over(self) -> bool:
        """Returns whether it has ended."""
        return self.child.poll() is not None

    def wait_until(self, moment: float) -> bool:
        """Waits until `moment` seconds after its start; returns whether it was still running then."""
        self._wait(moment - self.seconds())
        return not self.is_over()

    def _wait(self, seconds: float) -> None:
        """Waits for its end, at most for some seconds."""
        until = time.monotonic() + seconds
        try:
            # `Popen.wait` polls every 50 ms.
            handle = os.pidfd_open(self.child.pid)
        except OSError:
            # Some sandboxes have no such call.
            while time.monotonic() < until and not self.is_over():
                time.sleep(0.001)
            return
        select.select([handle], [], [], max(0.0, seconds))
        os.close(handle)

    def signal(self, number: int, group: bool = False) -> None:
        """Sends a signal to it or, with `group`, to its process group; does nothing if it has ended."""
        if self.is_over():
            return
        try:
            (os.killpg if group else os.kill)(self.child.pid, number)
        except ProcessLookupError:
            pass

    def ends(self, limit: float = PATIENCE) -> int:
        """Waits for its end; returns the exit code, which is negative after a signal."""
        self._wait(limit)
        code = self.child.poll()
        if code is None:
            raise Failed(f"a process hangs: it has not ended after {limit:.0f} s:\n{self.said()}")
        self.trial.note(f"ended with {code}: {(self.said().strip().splitlines() or [''])[-1][:300]}")
        return code

    def kill(self) -> None:
        """Kills its process group if it is still running."""
        if not self.is_over():
            self.signal(signal.SIGKILL, group=True)
            self.child.wait()


def children(pid: int) -> list[int]:
    """Returns the children of a process, sorted by process id, which is the order of their start."""
    try:
        return sorted(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    except OSError:
        return []


def strangers(folder: Path) -> list[int]:
    """Returns the ids of the processes whose working directory is below a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        if any(is_below(thread / "cwd", folder) for thread in threads(entry)):
            found.append(int(entry.name))
    return found


def threads(process: Path) -> list[Path]:
    """Returns the threads of a process. Those of one that is killed end one after another, and the last closes its files."""
    try:
        return list((process / "task").iterdir())
    except OSError:
        return []


def is_below(link: Path, folder: Path) -> bool:
    """Returns true if a link leads below a folder."""
    try:
        return link.readlink().is_relative_to(folder)
    except OSError:
        return False


def nobody_left(folder: Path, limit: float) -> None:
    """Waits until no process has its working directory below a folder."""
    began = time.monotonic()
    while left := strangers(folder):
        if time.monotonic() - began > limit:
            raise Failed(f"processes {left} are left over after {limit:.0f} s")
        time.sleep(0.02)


def runs(results: Path, recipe: str = "tiny") -> list[Path]:
    """Returns the run folders that have a summary, sorted by name, including runs of sweeps and comparisons."""
    return sorted(path.parent for path in results.glob(f"{recipe}/*/summary.json"))


def only(found: list[Path]) -> Path:
    """Returns the only run."""
    if len(found) != 1:
        raise Failed(f"there are {len(found)} runs, but there must be one: {found}")
    return found[0]


def summary(run: Path) -> dict:
    """Returns the summary of a run."""
    return json.loads((run / "summary.json").read_text())


def newest(run: Path) -> Path:
    """Returns the newest checkpoint of a run."""
    found = sorted((run / "checkpoint").glob("step-*"))
    if not found:
        raise Failed(f"{run.name} has no checkpoint")
    return found[-1]


def same_bits(run: Path, expected: Path, weights: bool = True, saves_failed: bool = False) -> None:
    """Checks that a run ended like another one: summary, rows and, with `weights`, checkpoints and pointers.

    With `saves_failed`, earlier checkpoints may not have been saved, or were damaged, so others may be kept.
    """
    mine, other = summary(run), summary(expected)
    for key in ("status", "steps", "tokens_seen", "train_loss", "val_loss", "samples"):
        if mine.get(key) != other.get(key):
            raise Failed(f"{key} is {mine.get(key)!r}, but {other.get(key)!r} in the undisturbed run")
    pairs = [(run / "metrics.csv", expected / "metrics.csv")]
    if weights:
        mine, other = newest(run), newest(expected)
        pairs += [(mine / name, other / name) for name in ("model.safetensors", "optimizer.safetensors")]
    for ours, theirs in pairs:
        if ours.read_bytes() != theirs.read_bytes():
            raise Failed(f"{ours.name} differs from the undisturbed run's")
    if weights:
        same_checkpoints(run, expected, saves_failed)


def same_checkpoints(run: Path, expected: Path, saves_failed: bool) -> None:
    """Checks that a run keeps as many checkpoints as another one, with the same pointers.

    The steps differ only where a signal had the run save between two regular saves.
    """
    mine, other = checkpoints(run), checkpoints(expected)
    if saves_failed:
        mine, other = [{key: text for key, text in found.items() if text} for found in (mine, other)]
    saved = re.findall(r"(?:saved after|resuming from) step (\d+)", (run / "log").read_text(errors="replace"))
    of_signals = {f"step-{int(step):06}" for step in saved} - set(other)
    for name in of_signals & set(mine):
        # It takes the place of the regular checkpoint before it.
        earlier = [step for step in other if step.startswith("step-") and step < name and step not in mine]
        mine.pop(name)
        other.pop(max(earlier, default=name), None)
    if mine != other:
        raise Failed(f"the checkpoints are {checkpoints(run)}, but {checkpoints(expected)} in the undisturbed run")


def checkpoints(run: Path) -> dict[str, str]:
    """Returns the names in a run's checkpoint folder, with the text of the pointers."""
    return {
        path.name: path.read_text(errors="replace") if path.is_file() else "" for path in (run / "checkpoint").iterdir()
    }


def go_on(folder: Path, fresh: list[str], recipe: str = "tiny") -> list[str]:
    """Returns the command that resumes the run in a folder, or starts a new one if there is none."""
    found = runs(folder / "results", recipe)
    if not found:
        return fresh
    status = summary(only(found))["status"]
    return ["resume", found[0].name] if status != "ok" else ["resume", str(found[0])]
