"""A comparison of a baseline and a candidate: its findings, its pairs or trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from .errors import ResultsError
from .rows import read_json
from .table import Cell, Table

#: The record of a comparison in its folder.
RECORD = "experiment.json"

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

#: The names of both arms.
ARMS = ("baseline", "candidate")


class Comparison:
    """The folder of a comparison; `kind` is `speed` for alternating trials, and `quality` for pairs of one seed."""

    def __init__(self, folder: Path, frames: Optional[str]) -> None:
        self.folder = folder
        self.frames = frames
        self.data: Dict[str, Any] = read_json(folder / RECORD)
        self.kind = "speed" if self.data["design"]["kind"] == "trials" else "quality"

    def __repr__(self) -> str:
        return f"Comparison({self.id!r})"

    @property
    def id(self) -> str:
        """NAME/ID."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    def pairs(self) -> Any:
        """The values of pairs of runs with one seed: a row per pair and measure.

        A value is missing where `baseline_state` or `candidate_state` is not `value`: there it is `diverged`,
        `missing`, or `never_reached` with what training had taken.
        """
        if self.kind != "quality":
            raise ResultsError(f"{self.id} compares speed in trials, which are no pairs: use trials()")
        sides = [(f"{arm}_{what}", kind) for arm in ARMS for what, kind in PAIRED]
        arms = [[run for run in self.data["runs"] if run["arm"] == arm] for arm in range(len(ARMS))]
        rows: List[Sequence[Cell]] = []
        for number, pair in enumerate(zip(*arms), start=1):
            # In the order of their first appearance, and each once.
            names = dict.fromkeys(name for run in pair for name in run.get("values", {}))
            rows.extend([number, name, *paired(pair[0], name), *paired(pair[1], name)] for name in names)
        return Table({"pair": int, "measure": str, **dict(sides)}, rows).to(self.frames)

    def trials(self) -> Any:
        """The speeds of trials: a row per trial and block, in tokens per second."""
        if self.kind != "speed":
            raise ResultsError(f"{self.id} compares pairs of runs with one seed, not trials: use pairs()")
        types = {"trial": int, "side": str, "run": str, "status": str, "block": int, "tok_s": float}
        rows: List[Sequence[Cell]] = []
        for number, trial in enumerate(self.data["runs"], start=1):
            for block, speed in enumerate(trial.get("blocks", []), start=1):
                rows.append([number, ARMS[trial["arm"]], trial.get("run"), trial.get("status"), block, speed])
        return Table(types, rows).to(self.frames)

    def verdicts(self) -> List[Sequence[Cell]]:
        """The rows of this comparison in the table of all, in the order of `VERDICTS`.

        An interval is of candidate - baseline, or of candidate / baseline - 1 for speeds and what training takes.
        """
        data = self.data
        prediction = data.get("prediction") or {}
        head: List[Cell] = [*self.id.split("/"), self.kind, *(arm["label"] for arm in data["arms"][: len(ARMS)])]
        tail: List[Cell] = [data["finished"], data.get("hypothesis"), prediction.get("text"), prediction.get("held")]

        def row(finding: Dict[str, Any]) -> Sequence[Cell]:
            interval = finding.get("interval") or {}
            bounds = [interval.get(key) for key in ("estimate", "low", "high")]
            found = [finding["measure"], finding["unit"], *bounds, finding.get("min_effect"), finding["verdict"]]
            return [*head, *found, *tail]

        return [row(finding) for finding in data["findings"]]


#: What a pair has of each of its runs.
PAIRED = (("seed", int), ("run", str), ("value", float), ("state", str))


def paired(run: Dict[str, Any], measure: str) -> Sequence[Cell]:
    """Returns seed, run, value and state of a measure: what `MeasureValue` is in JSON."""
    found = run.get("values", {}).get(measure)
    if isinstance(found, dict):
        state, value = next(iter(found.items()))
        return [run["seed"], run.get("run"), value if isinstance(value, (int, float)) else None, state]
    return [run["seed"], run.get("run"), None, found]
