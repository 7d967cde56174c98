"""Reads the files of rows that xrun writes: CSV and JSON lines."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Dict, List, Sequence

from . import kept
from .errors import ResultsError
from .table import Cell, Table

#: Columns of integers and of text; all others hold floats.
WHOLE = {"step", "tokens_seen", "driver_allocations", "slowest_rank", "written_step", "document", "tokens", "bytes", "steps"}
TEXT = {"phase", "throttle", "set"}


def read_csv(path: Path) -> Table:
    """Reads a CSV file of a run. A blank cell is a missing value; `NaN` and `inf` are values.

    A last line without a line feed is still being written, so it is left out.
    """
    lines = whole_lines(kept.read(path), path)
    rows = list(csv.reader(lines))
    if not rows:
        return Table({})
    header, rows = rows[0], rows[1:]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ResultsError(f"{path}:{number} has {len(row)} columns, but the header has {len(header)}")
    columns = {name: [row[at] for row in rows] for at, name in enumerate(header)}
    types = {name: column_type(name, column) for name, column in columns.items()}
    try:
        cells = [[parse(cell, types[name]) for name, cell in zip(header, row)] for row in rows]
    except ValueError as error:
        raise ResultsError(f"{path}: {error}: the file was edited, or a newer xrun wrote it") from None
    return Table(types, cells)


def read_json_lines(path: Path) -> List[Dict[str, Any]]:
    """Reads a file with a JSON object per line; a last line without a line feed is left out."""
    found = []
    for number, line in enumerate(whole_lines(kept.read(path), path), start=1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise ResultsError(f"{path}:{number}: {error}") from None
    return found


def read_json(path: Path) -> Dict[str, Any]:
    """Reads a JSON file."""
    try:
        content: Dict[str, Any] = json.loads(kept.read(path))
    except ValueError as error:
        raise ResultsError(f"{path}: {error}") from None
    return content


def whole_lines(content: bytes, path: Path) -> List[str]:
    """Decodes the lines that end with a line feed."""
    try:
        return content[: content.rfind(b"\n") + 1].decode().splitlines()
    except UnicodeDecodeError as error:
        raise ResultsError(f"{path}: {error}") from None


def column_type(name: str, cells: Sequence[str]) -> type:
    """Returns the type of a column by its name; an unknown column is text unless all cells are numbers."""
    if name in WHOLE:
        return int
    if name in TEXT or not all(is_number(cell) for cell in cells):
        return str
    return float


def is_number(cell: str) -> bool:
    """Returns whether a cell is blank or a number."""
    try:
        float(cell or "0")
    except ValueError:
        return False
    return True


def parse(cell: str, kind: type) -> Cell:
    """Parses a cell; a blank one is None."""
    return kind(cell) if cell else None
