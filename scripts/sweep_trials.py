"""What the trials of sweeps on clusters have in common: a recipe of short runs, and the rows of a sweep."""

import csv
from pathlib import Path

RECIPE = """\
[model]
dim = 32
n_heads = 2
n_layers = 1
ffn_dim = 64
[training]
seq_len = 32
steps = {steps}
[lr_scheduler]
warmup_steps = 0
[data]
train_tokens = 20_000
validation_tokens = 600
[validation]
interval = 1000
steps = 1
[checkpoint]
interval = {interval}
[engine]
device = "cpu"
threads = 1
"""
# Columns that depend on the machine and on what happened, not on the cell.
DIFFER = {"tok_s", "step_ms", "mfu_pct", "contended", "attempts", "run"}


def rows(results: Path) -> dict[str, dict[str, str]]:
    """Returns the rows of the only sweep in a results folder by cell."""
    (table,) = results.glob("sweeps/*/table.csv")
    with table.open(newline="") as file:
        return {row["cell"]: row for row in csv.DictReader(file)}
