"""Checks of the rows and the ledger of a sweep."""

import csv
import io
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from sweep_trials import DIFFER

# Cells that may run twice, without a process that seemed dead and lived.
MOST_TWICE = 0.001


class Wrong(Exception):
    """Something that must not happen has happened."""


@dataclass
class Attempt:
    """The lines of one attempt at a cell, by one or more writers."""

    writers: list[str] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    # The hash of the rows of each line that is `ok`.
    rows: list[str | None] = field(default_factory=list)


@dataclass
class History:
    """What the ledger says about each cell: its attempts that trained, and how often it was `ok`."""

    attempts: dict[str, dict[int, Attempt]]
    machines: dict[str, str]
    lines: int
    torn: int

    def counts(self) -> Counter[int]:
        """Returns how many cells have how many attempts."""
        return Counter(len(attempts) for attempts in self.attempts.values())

    def again(self) -> dict[str, dict[int, Attempt]]:
        """Returns the cells with more than one attempt."""
        return {key: attempts for key, attempts in self.attempts.items() if len(attempts) > 1}


def table(results: Path) -> list[dict[str, str]]:
    """Returns the rows of the only sweep in a results folder. Every row must be whole."""
    (path,) = results.glob("sweeps/*/table.csv")
    text = path.read_text()
    if not text.endswith("\n"):
        raise Wrong(f"{path} ends within a row: {text[-80:]!r}")
    reader = csv.reader(io.StringIO(text))
    header = next(reader)
    rows = []
    for row in reader:
        if len(row) != len(header):
            raise Wrong(f"a row of {path} has {len(row)} of {len(header)} columns: {row}")
        rows.append(dict(zip(header, row, strict=True)))
        if rows[-1]["status"] == "ok" and not all(rows[-1][name] for name in ("steps", "val_loss", "run", "cell")):
            raise Wrong(f"a row of {path} is half empty: {rows[-1]}")
    return rows


def history(results: Path) -> History:
    """Reads the ledger. Only the last line of a file may be incomplete."""
    placed, machines, torn = [], {}, 0
    for path in sorted(results.glob("sweeps/ledger/*.jsonl")):
        *lines, rest = path.read_text().split("\n")
        torn += bool(rest)
        for number, line in enumerate(lines):
            try:
                line = json.loads(line)
            except ValueError:
                raise Wrong(f"{path}:{number + 1} is not a line of a ledger: {lines[number][:80]!r}") from None
            if number == 0:
                machines[path.stem] = line["machine"]
            elif "key" in line:
                placed.append((line["seq"], path.stem, line))
    attempts: dict[str, dict[int, Attempt]] = defaultdict(dict)
    for _, writer, line in sorted(placed, key=lambda one: one[:2]):
        attempt = attempts[line["key"]].setdefault(line["attempt"], Attempt())
        attempt.writers += [writer] * (writer not in attempt.writers)
        attempt.statuses.append(line["status"])
        attempt.rows += [line.get("rows")] * (line["status"] == "ok")
    return History(dict(attempts), machines, len(placed), torn)


def check_once(found: History, cells: int, lapsed: int = 0) -> int:
    """Checks that no cell is `ok` twice, except `lapsed` cells whose process seemed dead and lived. Those must have the
    same rows to the bit, and the first attempt must have been taken for dead. Returns their number."""
    if len(found.attempts) != cells:
        raise Wrong(f"the ledger has {len(found.attempts)} cells, not {cells}")
    twice = 0
    for key, attempts in found.attempts.items():
        ok = sum(attempt.statuses.count("ok") for attempt in attempts.values())
        if ok == 0:
            raise Wrong(f"cell {key[:12]} has no row that is ok: {attempts}")
        if ok == 1:
            continue
        twice += 1
        hashes = {rows for attempt in attempts.values() for rows in attempt.rows}
        # A process that had claimed the cell and written nothing leaves nothing to end; then it shares the number of
        # its attempt with the process that took the cell over, on another machine.
        taken_over = [
            attempt for attempt in attempts.values()
            if "killed" in attempt.statuses or len({found.machines[writer] for writer in attempt.writers}) > 1
        ]
        if not taken_over:
            raise Wrong(f"cell {key[:12]} is ok {ok} times, and nobody took an attempt for dead: {attempts}")
        if len(hashes) != 1 or None in hashes:
            raise Wrong(f"cell {key[:12]} ran {ok} times with different rows: {attempts}")
    if twice > lapsed + MOST_TWICE * cells:
        raise Wrong(f"{twice} cells are ok twice; {lapsed} processes seemed dead and lived")
    return twice


def check_again(found: History, most: int) -> None:
    """Checks that at most this many cells have another attempt, and that each was taken for dead before."""
    for key, attempts in found.again().items():
        for number in sorted(attempts)[:-1]:
            if not {"killed", "unsaved"} & set(attempts[number].statuses):
                raise Wrong(f"cell {key[:12]} ran again, although its attempt {number} did not die: {attempts}")
    if len(found.again()) > most:
        raise Wrong(f"{len(found.again())} cells ran again, but only {most} were disturbed")


def check_rows(reference: list[dict[str, str]], rows: list[dict[str, str]]) -> None:
    """Checks that the rows of both tables are equal in all columns that depend on the cell alone."""
    cells, others = ({row["cell"]: row for row in some} for some in (reference, rows))
    if len(rows) != len(reference) or cells.keys() != others.keys():
        raise Wrong(f"the tables have different cells: {len(reference)} and {len(rows)} rows")
    for cell, row in cells.items():
        differ = [name for name in row if name not in DIFFER and row[name] != others[cell][name]]
        if differ:
            raise Wrong(f"cell {cell} differs in {differ}: {[(row[name], others[cell][name]) for name in differ]}")


def plant(results: Path, copy: Path) -> int:
    """Plants mistakes in copies of a sweep, each of which must be noticed. Returns their number."""
    (ledger,) = results.glob("sweeps/ledger/*.jsonl")
    last = json.loads(ledger.read_text().splitlines()[-1])
    again = last | {"seq": last["seq"] + 1}
    died, other = again | {"status": "killed"}, again | {"seq": last["seq"] + 2, "attempt": 2, "rows": "other"}
    cells, reference = len(table(results)), table(results)
    value = reference[0]["val_loss"]
    planted = {
        "a second row": (ledger, lambda text: text + json.dumps(again) + "\n"),
        "a second run": (ledger, lambda text: text + json.dumps(again | {"attempt": 2}) + "\n"),
        "other rows of a second run": (ledger, lambda text: text + json.dumps(died) + "\n" + json.dumps(other) + "\n"),
        "half a line": (ledger, lambda text: text.replace('"seq":3,', "\n", 1)),
        "no last row": (ledger, lambda text: "".join(text.splitlines(keepends=True)[:-1])),
        "half a row": (next(results.glob("sweeps/*/table.csv")), lambda text: text[:-9]),
        "another loss": (next(results.glob("sweeps/*/table.csv")), lambda text: text.replace(value, "1.5", 1)),
    }
    for what, (path, edit) in planted.items():
        for file in results.glob("sweeps/[!.]*/*.*"):
            to = copy / file.relative_to(results)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(file.read_bytes())
        (copy / path.relative_to(results)).write_text(edit(path.read_text()))
        try:
            check_once(history(copy), cells, lapsed=1)
            check_rows(reference, table(copy))
        except Wrong:
            continue
        raise Wrong(f"nobody noticed {what}")
    return len(planted)
