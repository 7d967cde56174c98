"""Typed columns, and their conversion to pandas and polars frames."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from .errors import ResultsError

Cell = Union[None, bool, int, float, str]

#: What tables can be converted to; `columns` is a plain dictionary of lists.
KINDS = ("pandas", "polars", "columns")


class Table:
    """Columns of equal length, each of one type. None is a missing value; NaN is a value."""

    def __init__(self, types: Dict[str, type], rows: Sequence[Sequence[Cell]] = ()) -> None:
        """Builds a table from `rows`, whose cells have the order and the types of `types`."""
        self.types = types
        columns: List[Tuple[Cell, ...]] = list(zip(*rows)) if rows else [() for _ in types]
        self.columns: Dict[str, List[Cell]] = {
            name: [convert(cell, kind) for cell in column]
            for (name, kind), column in zip(types.items(), columns)
        }

    def rows(self) -> List[Tuple[Cell, ...]]:
        """Returns the rows as tuples of cells."""
        return list(zip(*self.columns.values()))

    def to(self, kind: Optional[str]) -> Any:
        """Converts the table to one of `KINDS`; None means pandas if it is installed, else polars."""
        if kind is None:
            kind = next((name for name in KINDS[:2] if is_installed(name)), "")
            if not kind:
                raise ResultsError(
                    "neither pandas nor polars is installed: pip install pandas, "
                    'or load(…, frames="columns") for plain lists'
                )
        return {"pandas": self.to_pandas, "polars": self.to_polars, "columns": self.to_columns}[kind]()

    def to_columns(self) -> Dict[str, List[Cell]]:
        """Returns a dictionary of lists with None for missing values."""
        return {name: list(column) for name, column in self.columns.items()}

    def to_pandas(self) -> Any:
        """Returns a pandas frame of the nullable types Int64, Float64, boolean and string.

        Missing values are NA; NaN in a Float64 column was NaN in the file.
        """
        import numpy
        import pandas

        def array(column: List[Cell], kind: type) -> Any:
            missing = numpy.array([cell is None for cell in column], dtype=bool)
            if kind is str:
                return pandas.array(column, dtype="string")
            filled = numpy.array([kind() if cell is None else cell for cell in column], dtype=NUMPY[kind])
            if kind is bool:
                return pandas.arrays.BooleanArray(filled, missing)
            if kind is int:
                return pandas.arrays.IntegerArray(filled, missing)
            # Recent versions of pandas treat NaN as missing by default.
            with distinguish_nan(pandas):
                return pandas.arrays.FloatingArray(filled, missing)

        arrays = {name: array(column, self.types[name]) for name, column in self.columns.items()}
        return pandas.DataFrame(arrays)

    def to_polars(self) -> Any:
        """Returns a polars frame of the types Int64, Float64, Boolean and String, with null for missing values."""
        import polars

        types = {int: polars.Int64, float: polars.Float64, bool: polars.Boolean, str: polars.String}
        schema = {name: types[kind] for name, kind in self.types.items()}
        return polars.DataFrame(self.columns, schema=schema)


NUMPY = {int: "int64", float: "float64", bool: "bool"}


def convert(cell: Cell, kind: type) -> Cell:
    """Converts a cell to `kind`: JSON may write a whole number in a column of floats."""
    return cell if cell is None or type(cell) is kind else kind(cell)


def is_installed(module: str) -> bool:
    """Returns whether a module can be imported, but does not import it."""
    from importlib.util import find_spec

    return find_spec(module) is not None


def distinguish_nan(pandas: Any) -> Any:
    """Returns a context in which pandas distinguishes NaN from NA; older versions need none."""
    from contextlib import nullcontext

    try:
        return pandas.option_context("future.distinguish_nan_and_na", True)
    except KeyError:
        return nullcontext()
