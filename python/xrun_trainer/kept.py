"""Reads the files in folders that `xrun keep` made.

Kept files may be shared between runs or compressed, and they lack columns that follow from other columns.
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any, Dict, List

from .errors import ResultsError

#: How deep formulas may refer to other formulas; a deeper chain refers to itself.
MAX_DEPTH = 8


def exists(path: Path) -> bool:
    """Returns whether a run has a file, in its own folder or where kept runs share it."""
    return stored_at(path, entry(path)).is_file()


def read(path: Path) -> bytes:
    """Returns the original content of a run's file, whether the run is kept or not."""
    found = entry(path)
    stored = stored_at(path, found)
    try:
        content = stored.read_bytes()
        content = gzip.decompress(content) if stored.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise ResultsError(f"{stored} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return restore(content, found["derived"], path) if "derived" in found else content


def stored_at(path: Path, found: Dict[str, Any]) -> Path:
    """Returns the path that holds the content of a run's file: its own, the shared or the compressed one."""
    stored = path.parent / found.get("shared", path.name)
    compressed = stored.with_name(stored.name + ".gz")
    return compressed if found and not stored.is_file() and compressed.is_file() else stored


def entry(path: Path) -> Dict[str, Any]:
    """Returns a file's entry in the manifest beside it, or an empty one if there is no manifest."""
    manifest = path.parent / "manifest.json"
    if not manifest.is_file():
        return {}
    files = json.loads(manifest.read_bytes())["files"]
    return next((file for file in files if file["path"] == path.name), {})


def restore(content: bytes, derived: Dict[str, Any], path: Path) -> bytes:
    """Puts back the columns that are constant or computed from others."""
    lines = content.decode().splitlines()
    stored, header = lines[0].split(","), derived["header"].split(",")
    restored = [derived["header"]]
    for line in lines[1:]:
        row = Row(dict(zip(stored, line.split(","))), derived, path)
        restored.append(",".join(row.cell(name) for name in header))
    return ("\n".join(restored) + "\n").encode()


class Row:
    """A stored row and the rules to recompute its missing columns."""

    def __init__(self, cells: Dict[str, str], derived: Dict[str, Any], path: Path) -> None:
        self.cells = cells
        self.constant: Dict[str, str] = derived.get("constant", {})
        self.computed: Dict[str, str] = derived.get("computed", {})
        self.path = path

    def cell(self, name: str) -> str:
        """Returns the text of a column. Computed columns are blank except in training steps."""
        if name in self.cells:
            return self.cells[name]
        if name in self.constant:
            return self.constant[name]
        if name not in self.computed:
            raise ResultsError(f"{self.path}: its manifest does not say how to recompute `{name}`")
        is_training_step = self.cells.get("phase") in ("warmup", "train")
        return repr(self.formula(self.computed[name], 0)) if is_training_step else ""

    def formula(self, formula: str, depth: int) -> float:
        """Evaluates a chain of `*` and `/` from left to right."""
        words: List[str] = formula.split()
        value = self.operand(words[0], depth)
        for operator, word in zip(words[1::2], words[2::2]):
            operand = self.operand(word, depth)
            value = value * operand if operator == "*" else value / operand
        return value

    def operand(self, word: str, depth: int) -> float:
        """Returns the value of a number, a column, or `seconds`: the step's duration, rounded to nanoseconds."""
        if depth > MAX_DEPTH:
            raise ResultsError(f"{self.path}: the manifest's formula for `{word}` refers to itself")
        if word == "seconds":
            whole, rest = divmod(round(float(self.cells["step_ms"]) * 1e6), 10**9)
            return whole + rest / 1e9
        if word in self.cells:
            return float(self.cells[word])
        return self.formula(self.computed[word], depth + 1) if word in self.computed else float(word)
