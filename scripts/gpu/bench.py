"""Shared by the sections: the binary, its runs, and the findings."""

import argparse
import contextlib
import csv
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent


class OutOfTime(Exception):
    """Raised when a section has used up its time."""


@dataclass
class Finding:
    """A row of the table. `holds` is None for a measurement without a bound."""

    section: str
    what: str
    found: str
    holds: bool | None = None
    numbers: dict[str, object] = field(default_factory=dict)


@dataclass
class Run:
    """The folder of a finished run."""

    path: Path

    def summary(self) -> dict:
        """Returns the content of `summary.json`."""
        return json.loads((self.path / "summary.json").read_text())

    def timings(self, column: str) -> list[float]:
        """Returns a column of `timing.csv` in the steady state, without blanks."""
        first = self.summary()["steady_state"]["first_step"]
        with (self.path / "timing.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["step"] and int(row["step"]) >= first]
        return [float(row[column]) for row in rows if row[column]]

    def column(self, name: str) -> list[str]:
        """Returns a column of `metrics.csv` as text."""
        with (self.path / "metrics.csv").open() as file:
            return [row[name] for row in csv.DictReader(file)]

    def losses(self) -> list[float]:
        """Returns the training loss of every step."""
        return [float(loss) for loss in self.column("loss")]

    def digest(self) -> dict[str, str]:
        """Hashes the files that must not depend on how a run is executed: metrics and the last checkpoint."""
        last = max((self.path / "checkpoint").glob("step-*"))
        files = [self.path / "metrics.csv", last / "model.safetensors", last / "optimizer.safetensors"]
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


class Bench:
    """The binary, the options and the findings so far."""

    def __init__(self, args: argparse.Namespace, work: Path):
        self.xrun: str = str(args.xrun.resolve())
        self.device: str = args.device
        self.out: Path = args.out
        self.steps: int = args.steps
        self.turns: int = args.turns
        self.best: bool = args.best
        self.sizes: list[str] | None = args.sizes
        self.worlds: list[int] | None = args.worlds
        self.keys: list[str] = args.keys
        self.work = work
        self.cache = work / "cache"
        self.findings: list[Finding] = []
        self.section = ""
        self.deadline = 0.0
        self.folders = 0

    def note(self, what: str, found: str, holds: bool | None = None, **numbers: object) -> None:
        """Adds a row to the table and prints it."""
        self.findings.append(Finding(self.section, what, found, holds, numbers))
        print(f"{self.section:<7} {what}: {found}{verdict(holds)}", flush=True)

    def left(self) -> float:
        """Returns the seconds that the section has left; raises `OutOfTime` if there are none."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise OutOfTime
        return seconds

    def log(self) -> Path:
        """Returns the path of the section's log."""
        return self.out / f"{self.section}.log"

    def start(
        self, command: list[str], cache: Path | None = None, variables: dict[str, str] | None = None, **options: object
    ) -> subprocess.Popen:
        """Starts a command in its own session, so that `end` can kill it with all its children."""
        env = {**os.environ, "XRUN_CACHE": str(cache or self.cache), **(variables or {})}
        return subprocess.Popen(command, env=env, start_new_session=True, **options)

    def call(self, command: list[str], cache: Path | None = None, fails: bool = False) -> str:
        """Returns the output of a command that must succeed; with `fails`, exit code 1 is allowed too."""
        code, output = self.outcome(command, cache)
        if code not in ((0, 1) if fails else (0,)):
            raise RuntimeError(f"exit {code}: {last_words(output)}")
        return output

    def outcome(self, command: list[str], cache: Path | None = None) -> tuple[int, str]:
        """Runs a command to its end; returns its exit code and its output, which also goes to the log."""
        process = self.start(command, cache, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            output, _ = process.communicate(timeout=self.left())
        except subprocess.TimeoutExpired:
            raise OutOfTime from None
        finally:
            # Kills the children too, even if this script itself is told to stop.
            end(process)
        with self.log().open("a") as log:
            log.write(f"$ {' '.join(command)}\n{output}\n")
        return process.returncode, output

    def command(self, recipe: str | Path, keys: list[str], *options: str) -> tuple[list[str], Path]:
        """Returns a command that trains into a new results folder, and that folder.

        Adds the keys of --set if the run has several ranks.
        """
        self.folders += 1
        results = self.work / f"results-{self.folders}"
        if any(key.startswith("parallelism.world_size=") and not key.endswith("=1") for key in keys):
            named = {key.split("=")[0] for key in keys}
            keys = [*keys, *(key for key in self.keys if key.split("=")[0] not in named)]
        keys = [f"engine.device={self.device}", *keys]
        return [self.xrun, "--results", str(results), "run", str(recipe), *keys, *options, "--quiet"], results

    def keep(self, run: Run) -> None:
        """Copies a run's small files, which say where and how it was made, to `kept` beside the table."""
        results = run.path.parent.parent
        self.call([self.xrun, "--results", str(results), "keep", run.path.name, "--to", str(self.out / "kept")])

    def train(self, recipe: str | Path, keys: list[str], *options: str, cache: Path | None = None) -> Run:
        """Trains and returns the run."""
        command, results = self.command(recipe, keys, *options)
        self.call(command, cache)
        return the_run(results)


def last_words(output: str) -> str:
    """Returns the line of a command's output that says why it failed: the first error, else the last line."""
    lines = output.strip().splitlines() or [""]
    return next((line for line in lines if line.startswith("error")), lines[-1])[:300]


def the_run(results: Path) -> Run:
    """Returns the only run in a results folder."""
    (summary,) = results.glob("*/*/summary.json")
    return Run(summary.parent)


def end(process: subprocess.Popen) -> None:
    """Kills a process from `Bench.start` and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def verdict(holds: bool | None) -> str:
    """Returns the end of a printed row."""
    return {None: "", True: ": holds", False: ": DOES NOT HOLD"}[holds]


def attempt(bench: Bench, what: str, action: Callable[[], None]) -> None:
    """Runs one action of a section. An error becomes a finding, so that the next actions still run."""
    try:
        action()
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        bench.note(what, f"{type(error).__name__}: {error}", False)
