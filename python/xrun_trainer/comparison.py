"""A comparison of a baseline and a candidate: its verdicts, its pairs or turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from .errors import ResultsError
from .rows import read_json
from .table import Cell, Table

#: Columns of the table of comparisons: a row per comparison and measure.
VERDICTS: Dict[str, type] = {
    **dict.fromkeys(("name", "id", "kind", "baseline", "candidate", "measure", "unit"), str),
    **dict.fromkeys(("estimate", "low", "high", "min_effect"), float),
    "verdict": str,
    "finished": bool,
    "hypothesis": str,
    "predicts": str,
    "prediction_held": bool,
}


class Comparison:
    """The folder of a comparison: of speed (`comparison.json`) or of quality (`quality.json`)."""

    def __init__(self, folder: Path, frames: Optional[str]) -> None:
        self.folder = folder
        self.frames = frames
        self.kind = "quality" if (folder / "quality.json").is_file() else "speed"
        self.data: Dict[str, Any] = read_json(folder / ("quality.json" if self.kind == "quality" else "comparison.json"))

    def __repr__(self) -> str:
        return f"Comparison({self.id!r})"

    @property
    def id(self) -> str:
        """NAME/ID."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    def pairs(self) -> Any:
        """The values of a comparison of quality: a row per pair of runs and measure.

        A value is missing where `baseline_state` or `candidate_state` is not `value`: there it is `diverged`,
        `missing`, or `never_reached` with what training had taken.
        """
        if self.kind != "quality":
            raise ResultsError(f"{self.id} compares speed, in turns and not in pairs: use turns()")
        sides = [(f"{side}_{what}", kind) for side in ("baseline", "candidate") for what, kind in PAIRED]
        rows: List[Sequence[Cell]] = []
        for number, pair in enumerate(self.data["pairs"], start=1):
            # In the order of their first appearance, and each once.
            names = dict.fromkeys(name for side in ("baseline", "candidate") for name in pair[side]["values"])
            for name in names:
                cells = [paired(pair[side], name) for side in ("baseline", "candidate")]
                rows.append([number, name, *cells[0], *cells[1]])
        return Table({"pair": int, "measure": str, **dict(sides)}, rows).to(self.frames)

    def turns(self) -> Any:
        """The speeds of a comparison of speed: a row per turn and block, in tokens per second."""
        if self.kind != "speed":
            raise ResultsError(f"{self.id} compares quality, in pairs and not in turns: use pairs()")
        types = {"turn": int, "side": str, "run": str, "status": str, "block": int, "tok_s": float}
        rows: List[Sequence[Cell]] = []
        for number, turn in enumerate(self.data["turns"], start=1):
            side = "candidate" if turn["after"] else "baseline"
            for block, speed in enumerate(turn["blocks"], start=1):
                rows.append([number, side, turn.get("run"), turn.get("status"), block, speed])
        return Table(types, rows).to(self.frames)

    def verdicts(self) -> List[Sequence[Cell]]:
        """The rows of this comparison in the table of all, in the order of `VERDICTS`."""
        data = self.data
        arms = ("baseline", "candidate") if self.kind == "quality" else ("before", "after")
        head: List[Cell] = [*self.id.split("/"), self.kind, *(data[arm]["label"] for arm in arms)]
        tail: List[Cell] = [data["finished"], data.get("hypothesis"), data.get("predicts"), data.get("prediction_held")]

        def row(measure: str, unit: str, found: Optional[Dict[str, Any]], least: Any, verdict: Any) -> Sequence[Cell]:
            interval = found or {}
            bounds = [interval.get(key) for key in ("estimate", "low", "high")]
            return [*head, measure, unit, *bounds, least, verdict, *tail]

        if self.kind == "speed":
            ratio = data.get("ratio") or {}
            return [row("tok_s", "ratio", ratio, data.get("min_effect"), data.get("verdict"))]
        return [
            row(m["measure"], m["unit"], m["interval"], m["min_effect"], m["verdict"]) for m in data["measures"]
        ]


#: What a pair has of each of its runs.
PAIRED = (("seed", int), ("run", str), ("value", float), ("state", str))


def paired(run: Dict[str, Any], measure: str) -> Sequence[Cell]:
    """Returns seed, run, value and state of a measure: what `MeasureValue` is in JSON."""
    found = run["values"].get(measure)
    if isinstance(found, dict):
        state, value = next(iter(found.items()))
        return [run["seed"], run.get("run"), value if isinstance(value, (int, float)) else None, state]
    return [run["seed"], run.get("run"), None, found]
