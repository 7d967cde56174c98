#!/usr/bin/env python3
"""Checks the Python reader against the files that it reads, with plain lists, pandas and polars.

    python3 scripts/python_reader_check.py results/kept      # skips pandas or polars if it is not installed

Compares every cell of every run's CSV files with the text in the file, parsed with only `csv` and `float`: a blank must
be a missing value, and NaN must be NaN. Then checks the frames of a made-up run, which has blanks, NaN, infinities and
an incomplete last line, and of a made-up comparison.
"""

import argparse
import csv
import gzip
import io
import json
import math
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))
import xrun_trainer  # noqa: E402
from xrun_trainer import kept  # noqa: E402
from xrun_trainer.table import is_installed  # noqa: E402

METRICS = "step,tokens_seen,loss,val_loss,lr,grad_norm\n1,64,4.5,,0.001,1.25\n2,128,NaN,4.25,1e-3,inf\n3,192,4.2"
EXPERIMENT = {
    "arms": [{"label": "a"}, {"label": "b"}],
    "design": {"kind": "pairs", "pairs": 1},
    "finished": True,
    "runs": [
        {"arm": 0, "seed": 1, "run": "r/1", "values": {"val_loss": {"value": 2.5}}},
        {"arm": 1, "seed": 1, "run": None, "values": {"val_loss": "diverged"}},
    ],
    "findings": [
        {"measure": "val_loss", "unit": "nats", "interval": None, "min_effect": 0.01, "verdict": "inconclusive"}
    ],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="the results folder")
    folder = parser.parse_args().results
    kinds = [kind for kind in ("columns", "pandas", "polars") if kind == "columns" or is_installed(kind)]
    for kind in ("pandas", "polars"):
        if kind not in kinds:
            print(f"SKIPPED: {kind} is not installed")
    for kind in kinds:
        runs, cells = compare_runs(folder, kind)
        assert runs > 0, f"{folder} has no runs: nothing was compared"
        check_made_up(kind)
        print(f"{kind}: {cells} cells of {runs} runs match their files")
    return 0


def compare_runs(folder: str, kind: str) -> tuple[int, int]:
    """Compares every cell of every run with the text in its file; returns the number of runs and of cells."""
    results = xrun_trainer.load(folder, frames=kind)
    runs, cells = results.all_runs(), 0
    assert len(lists(results.runs())["run"]) == len(runs)
    for run in runs:
        for file, frame in (("metrics.csv", run.metrics), ("timing.csv", run.timing)):
            path = run.folder / file
            if not kept.exists(path):
                continue
            check_restored(run.folder, file)
            rows = list(csv.DictReader(io.StringIO(stored_text(path), newline="")))
            found = lists(frame())
            for name in rows[0]:
                for row, value in zip(rows, found[name], strict=True):
                    assert same(row[name], value), f"{path}: {name}: {row[name]!r} was read as {value!r}"
                    cells += 1
    return len(runs), cells


def stored_text(path: pathlib.Path) -> str:
    """Returns a run's file as it is stored; for a kept run, that excludes the recomputed columns."""
    stored = kept.stored_at(path, kept.entry(path))
    content = stored.read_bytes()
    return (gzip.decompress(content) if stored.suffix == ".gz" else content).decode()


def check_restored(folder: pathlib.Path, file: str) -> None:
    """Checks that a kept run's file, with its columns recomputed, has as many bytes as the original."""
    manifest = folder / "manifest.json"
    if manifest.is_file():
        listed = json.loads(manifest.read_text())["files"]
        size = len(kept.read(folder / file))
        assert [size] == [entry["bytes"] for entry in listed if entry["path"] == file], f"{folder / file}: {size} bytes"


def lists(frame: object) -> dict:
    """Converts a frame to lists, with None for missing values."""
    if isinstance(frame, dict):
        return frame
    if hasattr(frame, "to_dict") and hasattr(frame, "iloc"):
        import pandas

        # Item by item, because the conversions of pandas turn NaN into a missing value.
        return {name: [none(pandas, frame[name].array, at) for at in range(len(frame))] for name in frame.columns}
    return frame.to_dict(as_series=False)  # type: ignore[attr-defined]


def none(pandas: object, array: object, at: int) -> object:
    """Returns an item of a pandas array, with None for NA."""
    item = array[at]  # type: ignore[index]
    return None if item is pandas.NA else item  # type: ignore[attr-defined]


def same(text: str, value: object) -> bool:
    """Returns whether a value equals the text of its cell to the bit."""
    if text == "":
        return value is None
    if isinstance(value, str):
        return value == text
    expected = float(text)
    return value is not None and (expected == value or (math.isnan(expected) and math.isnan(value)))  # type: ignore


def check_made_up(kind: str) -> None:
    """Checks a made-up run and comparison that have every special value."""
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "tiny" / "20260101T000000Z-01234567"
        run.mkdir(parents=True)
        (run / "summary.json").write_text('{"status": "diverged", "steps": 2, "train_loss": {}, "val_loss": null}')
        (run / "resolved.toml").write_text('name = "tiny"\n[optimizer]\nlr = 1e-3\nbetas = [0.9, 0.95]\n')
        (run / "metrics.csv").write_text(METRICS)
        pair = pathlib.Path(folder) / "comparisons" / "tiny" / "20260101T000000Z-89abcdef"
        pair.mkdir(parents=True)
        (pair / "experiment.json").write_text(json.dumps(EXPERIMENT))
        results = xrun_trainer.load(folder, frames=kind)

        curve = lists(results.curves())
        assert curve["step"] == [1, 2], "the incomplete last line must be left out"
        assert curve["val_loss"] == [None, 4.25] and curve["grad_norm"] == [1.25, math.inf]
        assert curve["loss"][0] == 4.5 and isinstance(curve["loss"][1], float) and math.isnan(curve["loss"][1])
        assert set(lists(results.curves("loss"))) == {"recipe", "run", "step", "tokens_seen", "loss"}

        listed = lists(results.runs(settings=["optimizer.lr", "optimizer.betas"]))
        assert listed["optimizer.lr"] == [0.001] and listed["optimizer.betas"] == ["[0.9, 0.95]"]
        assert listed["train_loss"] == [None], "only the last step is averaged, and its loss is not finite"
        assert listed["status"] == ["diverged"] and listed["mfu_pct"] == [None]

        verdicts = lists(results.comparisons())
        assert verdicts["verdict"] == ["inconclusive"] and verdicts["low"] == [None]
        pairs = lists(results.comparison("tiny").pairs())
        assert pairs["baseline_value"] == [2.5] and pairs["baseline_state"] == ["value"]
        assert pairs["candidate_value"] == [None] and pairs["candidate_state"] == ["diverged"]
        assert pairs["candidate_run"] == [None]

        for wrong in (
            lambda: results.run("nothing"),
            lambda: results.curves("nothing"),
            lambda: results.runs(settings=["nothing"]),
            lambda: results.comparison("nothing"),
            lambda: results.run().timing(),
            lambda: xrun_trainer.load(pathlib.Path(folder) / "nothing"),
            lambda: xrun_trainer.load(folder, frames="nothing"),
        ):
            try:
                wrong()
            except xrun_trainer.ResultsError:
                continue
            raise AssertionError("a wrong name was accepted")


if __name__ == "__main__":
    sys.exit(main())
