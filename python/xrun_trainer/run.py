"""A run: its rows, its recipe and its result."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict, Optional

from . import kept
from .errors import ResultsError
from .implied import IMPLIED
from .rows import read_csv, read_json
from .table import Cell, Table


class Run:
    """The folder of a run. Every access reads its files anew, so a run may still be training."""

    def __init__(self, folder: Path, frames: Optional[str]) -> None:
        self.folder = folder
        self.frames = frames

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    @property
    def recipe(self) -> str:
        """The name of the recipe."""
        return self.folder.parent.name

    @property
    def name(self) -> str:
        """The name of the run: its start in UTC and the first digits of the recipe's hash."""
        return self.folder.name

    @property
    def id(self) -> str:
        """RECIPE/RUN."""
        return f"{self.recipe}/{self.name}"

    @property
    def summary(self) -> Dict[str, Any]:
        """The current content of `summary.json`, the result of the run."""
        return read_json(self.folder / "summary.json")

    @property
    def environment(self) -> Dict[str, Any]:
        """The content of `env.json`: commit, CPU, GPU and system."""
        return read_json(self.folder / "env.json")

    @property
    def settings(self) -> Dict[str, Any]:
        """The values of the resolved recipe by dotted key, such as `optimizer.lr`, defaults included."""
        return {**IMPLIED, **flat(read_toml(self.folder / "resolved.toml"))}

    def metrics(self) -> Any:
        """Returns `metrics.csv`, the results of training: a row per step."""
        return self.table("metrics.csv").to(self.frames)

    def timing(self) -> Any:
        """Returns `timing.csv`, the measurements: a row per step, evaluation, save and generation."""
        return self.table("timing.csv").to(self.frames)

    def documents(self) -> Any:
        """Returns `documents.csv`, the losses of held-out documents. Needs `validation.documents`."""
        return self.table("documents.csv").to(self.frames)

    def table(self, file: str) -> Table:
        """Reads a CSV file of the run."""
        path = self.folder / file
        if not kept.exists(path):
            raise ResultsError(f"{self.id} has no {file}")
        return read_csv(path)

    def figures(self) -> Dict[str, Cell]:
        """Returns the figures of the whole run under the names that `xrun runs` and reports use."""
        summary = self.summary

        def at(*keys: str) -> Any:
            found: Any = summary
            for key in keys:
                found = found.get(key) if isinstance(found, dict) else None
            return found

        smoothed = at("train_loss", "smoothed", "loss")
        return {
            "recipe": self.recipe,
            "run": self.name,
            "status": at("status"),
            "reason": at("reason"),
            "parameters": at("parameters"),
            "steps": at("steps"),
            "steps_planned": at("steps_planned"),
            "tokens_seen": at("tokens_seen"),
            "train_loss": self.smoothed_loss() if smoothed is None else smoothed,
            "val_loss": at("val_loss", "final", "loss"),
            "best_val_loss": at("val_loss", "best", "loss"),
            "floor": at("floor"),
            "val_loss_over_floor": at("val_loss_over_floor"),
            "tok_s": at("tok_s"),
            "step_ms": at("steady_state", "step_ms", "median"),
            "mfu_pct": at("mfu_pct"),
            "wall_s": at("wall_s"),
            "recipe_hash": at("recipe_hash"),
            "corpus_hash": at("corpus_hash"),
        }

    def smoothed_loss(self) -> Optional[float]:
        """Computes the smoothed training loss, which older summaries lack.

        It is the mean of the finite losses in the last tenth of the steps, of at most 50 steps.
        """
        if not kept.exists(self.folder / "metrics.csv"):
            return None
        losses = self.table("metrics.csv").columns.get("loss", [])
        last = losses[-min(max(len(losses) // 10, 1), 50) :]
        finite = [loss for loss in last if isinstance(loss, float) and math.isfinite(loss)]
        return sum(finite) / len(finite) if finite else None


#: The figures and their types.
FIGURES: Dict[str, type] = {
    **dict.fromkeys(("recipe", "run", "status", "reason"), str),
    **dict.fromkeys(("parameters", "steps", "steps_planned", "tokens_seen"), int),
    **dict.fromkeys(("train_loss", "val_loss", "best_val_loss", "floor", "val_loss_over_floor"), float),
    **dict.fromkeys(("tok_s", "step_ms", "mfu_pct", "wall_s"), float),
    **dict.fromkeys(("recipe_hash", "corpus_hash"), str),
}


def read_toml(path: Path) -> Dict[str, Any]:
    """Reads a TOML file."""
    try:
        import tomllib
    except ImportError:
        try:
            import tomli as tomllib  # type: ignore[no-redef, unused-ignore]
        except ImportError:
            raise ResultsError("recipes are TOML, which Python reads only since 3.11: pip install tomli") from None
    try:
        tables: Dict[str, Any] = tomllib.loads(kept.read(path).decode())
    except ValueError as error:
        raise ResultsError(f"{path}: {error}") from None
    return tables


def flat(tables: Dict[str, Any], prefix: str = "") -> Dict[str, Any]:
    """Flattens nested tables into values by dotted key."""
    values: Dict[str, Any] = {}
    for key, value in tables.items():
        values.update(flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return values
