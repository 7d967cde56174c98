"""A results folder: its runs, comparisons and sweep cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

from . import kept
from .comparison import RECORD, VERDICTS, Comparison
from .errors import ResultsError
from .rows import read_json_lines
from .run import FIGURES, Run
from .table import KINDS, Cell, Table

#: Folders in a results folder that are not named after a recipe.
OTHERS = {"binaries", "comparisons", "coordinates", "kept", "objects", "sweeps"}

#: Figures of a sweep cell that are integers or booleans; all others are floats.
WHOLE = {"steps", "planned_bytes", "allocated_bytes"}
TRUTHS = {"contended"}


def load(folder: Union[str, Path] = "results", frames: Optional[str] = None) -> "Results":
    """Opens a results folder. Files are read when a table needs them.

    `frames` is the type of tables: `pandas`, `polars`, or `columns` for a dictionary of lists. The default is
    pandas if it is installed, else polars.
    """
    path = Path(folder)
    if frames not in (None, *KINDS):
        raise ResultsError(f"frames={frames!r} is unknown: give one of {', '.join(map(repr, KINDS))}")
    if not path.is_dir():
        raise ResultsError(f"{path} is not a folder: give the one of `xrun --results` (`results` by default)")
    return Results(path, frames)


class Results:
    """A results folder, opened with `load`."""

    def __init__(self, folder: Path, frames: Optional[str]) -> None:
        self.folder = folder
        self.frames = frames

    def __repr__(self) -> str:
        return f"Results({str(self.folder)!r})"

    def all_runs(self) -> List[Run]:
        """Returns the runs from oldest to newest."""
        found = [
            run
            for recipe in subfolders(self.folder)
            if recipe.name not in OTHERS
            for run in subfolders(recipe)
            if (run / "summary.json").is_file()
        ]
        return [Run(folder, self.frames) for folder in sorted(found, key=lambda run: (run.name, run.parent.name))]

    def run(self, name: str = "latest") -> Run:
        """Finds a run by RECIPE/RUN or a unique prefix; a RECIPE or `latest` gives the newest one."""
        runs = self.all_runs()
        if not runs:
            raise ResultsError(f"{self.folder} has no runs")
        of_recipe = [run for run in runs if name in ("latest", run.recipe)]
        if of_recipe:
            return of_recipe[-1]
        found = [run for run in runs if run.id == name] or [
            run for run in runs if run.name.startswith(name) or run.id.startswith(name)
        ]
        if len(found) != 1:
            what = "no run matches" if not found else f"{len(found)} runs match"
            raise ResultsError(f"{what} {name!r} in {self.folder}: runs() lists them all")
        return found[0]

    def runs(self, settings: Sequence[str] = ()) -> Any:
        """Returns a row per run: status, steps, losses, speed, and the values of the recipe keys in `settings`.

        A key is dotted, such as `optimizer.lr`.
        """
        runs = self.all_runs()
        rows = [list(run.figures().values()) for run in runs]
        types = dict(FIGURES)
        values = [run.settings for run in runs] if settings else []
        for key in settings:
            column = [cell(found.get(key)) for found in values]
            if all(value is None for value in column):
                raise ResultsError(f"no run has the key {key!r}: a run's `settings` lists its keys")
            types[key] = common_type(column)
            for row, value in zip(rows, column):
                row.append(value)
        return Table(types, rows).to(self.frames)

    def curves(self, *columns: str) -> Any:
        """Returns the rows of every run's `metrics.csv`, concatenated; only `columns`, if any are named."""
        return self.joined("metrics.csv", ("step", "tokens_seen"), columns)

    def timing(self, *columns: str) -> Any:
        """Returns the rows of every run's `timing.csv`, concatenated; only `columns`, if any are named."""
        return self.joined("timing.csv", ("step", "phase"), columns)

    def joined(self, file: str, keys: Sequence[str], columns: Sequence[str]) -> Any:
        """Concatenates a file of all runs that have it. Columns that a run lacks hold missing values."""
        runs = [run for run in self.all_runs() if kept.exists(run.folder / file)]
        tables = [(run, run.table(file)) for run in runs]
        types: Dict[str, type] = {}
        for _, table in tables:
            for name, kind in table.types.items():
                types[name] = kind if types.get(name, kind) is kind else str
        unknown = [name for name in columns if name not in types]
        if unknown:
            raise ResultsError(f"no {file} has a column {unknown[0]!r}: the columns are {', '.join(types)}")
        if columns:
            types = {name: types[name] for name in dict.fromkeys((*keys, *columns))}
        rows: List[Sequence[Cell]] = []
        for run, table in tables:
            blank: List[Cell] = [None] * len(table.rows())
            joined = zip(*(table.columns.get(name, blank) for name in types))
            rows.extend([run.recipe, run.name, *row] for row in joined)
        return Table({"recipe": str, "run": str, **types}, rows).to(self.frames)

    def all_comparisons(self) -> List[Comparison]:
        """Returns the comparisons from oldest to newest."""
        found = [
            comparison
            for name in subfolders(self.folder / "comparisons")
            for comparison in subfolders(name)
            if (comparison / RECORD).is_file()
        ]
        ordered = sorted(found, key=lambda folder: (folder.name, folder.parent.name))
        return [Comparison(folder, self.frames) for folder in ordered]

    def comparison(self, name: str) -> Comparison:
        """Finds a comparison by NAME/ID; a NAME alone gives its newest one."""
        found = [one for one in self.all_comparisons() if name in (one.id, *one.id.split("/"))]
        if not found:
            raise ResultsError(f"{self.folder} has no comparison {name!r}: comparisons() lists them all")
        return found[-1]

    def comparisons(self) -> Any:
        """Returns a row per comparison and measure: interval of the difference or ratio, and verdict."""
        rows = [row for comparison in self.all_comparisons() for row in comparison.verdicts()]
        return Table(VERDICTS, rows).to(self.frames)

    def cells(self) -> Any:
        """Returns a row per sweep cell with the status, settings and figures of its last attempt.

        The rows come from `sweeps/ledger`.
        """
        last: Dict[str, Dict[str, Any]] = {}
        # The ledger has one file per process. A line's `seq` orders it among the lines of all files; the
        # first line of a file names its process and has no `seq`.
        ledger = sorted(self.folder.glob("sweeps/ledger/*.jsonl"))
        merged = [(line["seq"], path.name, line) for path in ledger for line in read_json_lines(path) if "seq" in line]
        lines = [line for *_, line in sorted(merged, key=lambda one: one[:2])]
        if not ledger:
            kept = sorted(self.folder.glob("sweeps/*/ledger.jsonl"))
            lines = [line for path in kept for line in read_json_lines(path)]
        for line in lines:
            last.pop(line["key"], None)
            last[line["key"]] = line
        lines = list(last.values())
        types: Dict[str, type] = {**dict.fromkeys(("key", "recipe", "run", "status", "reason"), str), "attempt": int}
        settings = sorted({key for line in lines for key in line["settings"]})
        measured = list(dict.fromkeys(key for line in lines for key in line["measured"]))
        rows: List[Sequence[Cell]] = [
            [
                *(line.get(name) for name in types),
                *(self.cell_value(line, key) for key in settings),
                *(line["measured"].get(key) for key in measured),
            ]
            for line in lines
        ]
        figures = {key: int if key in WHOLE else bool if key in TRUTHS else float for key in measured}
        return Table({**types, **dict.fromkeys(settings, str), **figures}, rows).to(self.frames)

    def cell_value(self, line: Dict[str, Any], key: str) -> Optional[str]:
        """Returns the value of a recipe key in a sweep's cell: what the sweep set, else what its run had."""
        value = line["settings"].get(key)
        if value is not None or not line.get("run"):
            return plain(value)
        folder = self.folder / line["run"]
        found = Run(folder, self.frames).settings.get(key) if kept.exists(folder / "resolved.toml") else None
        return None if found is None else str(cell(found))


def plain(value: Any) -> Optional[str]:
    """Converts a value in TOML to plain text: a string without its quotes, anything else as it is."""
    if isinstance(value, str) and value.startswith('"'):
        text: str = json.loads(value)
        return text
    return None if value is None else str(value)


def subfolders(folder: Path) -> List[Path]:
    """Returns the folders in a folder except hidden ones; none if the folder does not exist."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def cell(value: Any) -> Cell:
    """Converts a recipe's value to a cell; lists and dates become text."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def common_type(column: Sequence[Cell]) -> type:
    """Returns the type of a column's values: float for a mix of integers and floats, else text for a mix."""
    found = {type(value) for value in column if value is not None}
    if found <= {int, float} and len(found) > 1:
        return float
    return found.pop() if len(found) == 1 else str
