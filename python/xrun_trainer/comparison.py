"""A comparison of a baseline with a candidate: its findings, and its pairs or trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from .errors import ResultsError
from .rows import read_json
from .table import Cell, Table

#: The file in a comparison's folder that records it.
RECORD = "experiment.json"

#: Columns of the table of comparisons, which has a row per comparison and measure.
VERDICTS: Dict[str, type] = {
    **dict.fromkeys(("name", "id", "kind", "baseline", "candidate", "measure", "unit"), str),
    **dict.fromkeys(("estimate", "low", "high", "min_effect"), float),
    "verdict": str,
    "standing": str,
    "qualifiers": str,
    "finished": bool,
    "hypothesis": str,
    "predicts": str,
    "prediction_held": bool,
}

#: The standing of a comparison from before standings were recorded.
NOT_RECORDED = "not recorded"

#: The names of the two arms, in the order of the record.
ARMS = ("baseline", "candidate")


class Comparison:
    """The folder of a comparison.

    `kind` is `speed` if the arms took turns in trials, and `quality` if they ran in pairs that share a seed.
    """

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
        """Returns the values of the pairs, whose two runs share a seed: a row per pair and measure.

        `baseline_state` and `candidate_state` are `value` where the run has the value. Otherwise they are
        `diverged` or `missing`, and the value is missing, or `never_reached`, and the value is what the run
        spent without reaching its target.
        """
        if self.kind != "quality":
            raise ResultsError(f"{self.id} compares speed, so it has trials and no pairs: use trials()")
        sides = [(f"{arm}_{what}", kind) for arm in ARMS for what, kind in PAIRED]
        arms = [[run for run in self.data["runs"] if run["arm"] == arm] for arm in range(len(ARMS))]
        rows: List[Sequence[Cell]] = []
        for number, pair in enumerate(zip(*arms), start=1):
            # Each name once, in the order in which it first appears.
            names = dict.fromkeys(name for run in pair for name in run.get("values", {}))
            rows.extend([number, name, *paired(pair[0], name), *paired(pair[1], name)] for name in names)
        return Table({"pair": int, "measure": str, **dict(sides)}, rows).to(self.frames)

    def trials(self) -> Any:
        """Returns the speeds of the trials in tokens per second: a row per trial and block."""
        if self.kind != "speed":
            raise ResultsError(f"{self.id} compares quality, so it has pairs and no trials: use pairs()")
        types = {"trial": int, "side": str, "run": str, "status": str, "block": int, "tok_s": float}
        rows: List[Sequence[Cell]] = []
        for number, trial in enumerate(self.data["runs"], start=1):
            for block, speed in enumerate(trial.get("blocks", []), start=1):
                rows.append([number, ARMS[trial["arm"]], trial.get("run"), trial.get("status"), block, speed])
        return Table(types, rows).to(self.frames)

    def reasons(self) -> List[str]:
        """Returns why the answer is exploratory, so that it has no verdict; empty if it is not."""
        return list((self.data.get("standing") or {}).get("reasons", []))

    def verdicts(self) -> List[Sequence[Cell]]:
        """Returns this comparison's rows in the table of comparisons, with the columns of `VERDICTS`.

        An interval holds candidate - baseline. For speeds and for what training takes (steps, tokens, time), it
        holds candidate / baseline - 1. `standing` is `confirmatory` if the question was stored before its runs,
        `exploratory` if not, and then there is no verdict, or `not recorded` in records of earlier versions.
        `qualifiers` has what a verdict must be read with, such as `at 50 % more tokens`.
        """
        data = self.data
        prediction = data.get("prediction") or {}
        head: List[Cell] = [*self.id.split("/"), self.kind, *(arm["label"] for arm in data["arms"][: len(ARMS)])]
        standing = (data.get("standing") or {"kind": NOT_RECORDED})["kind"]
        said: List[Cell] = [standing, "; ".join([*self.reasons(), *data.get("qualifiers", [])])]
        tail: List[Cell] = [*said, data["finished"], data.get("hypothesis"), prediction.get("text"), prediction.get("held")]

        def row(finding: Dict[str, Any]) -> Sequence[Cell]:
            interval = finding.get("interval") or {}
            bounds = [interval.get(key) for key in ("estimate", "low", "high")]
            found = [finding["measure"], finding["unit"], *bounds, finding.get("min_effect"), finding["verdict"]]
            return [*head, *found, *tail]

        return [row(finding) for finding in data["findings"]]


#: The columns that a pair has for each of its two runs.
PAIRED = (("seed", int), ("run", str), ("value", float), ("state", str))


def paired(run: Dict[str, Any], measure: str) -> Sequence[Cell]:
    """Returns the seed, run, value and state of a measure, from `MeasureValue` as JSON."""
    found = run.get("values", {}).get(measure)
    if isinstance(found, dict):
        state, value = next(iter(found.items()))
        return [run["seed"], run.get("run"), value if isinstance(value, (int, float)) else None, state]
    return [run["seed"], run.get("run"), None, found]
