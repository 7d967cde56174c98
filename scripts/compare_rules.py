#!/usr/bin/env python3
"""Compares the rule of `xrun compare` with other rules, on blocks of real runs in tests/compare/blocks.csv.

    python3 scripts/compare_rules.py            # needs numpy and scipy

Draws three runs per side, thousands of times, from runs of one recipe, so every difference that a rule finds is false.
Then does the same with the candidate slowed down by 5 %. Prints the rows of the table in docs/measuring.md.
"""

import csv
import pathlib

import numpy as np
from scipy.stats import t as student

BLOCKS = pathlib.Path(__file__).parent.parent / "tests/compare/blocks.csv"
RUNS, COMPARISONS, RESAMPLES, MIN_EFFECT = 3, 2000, 300, 0.01
rng = np.random.default_rng(7)


def welch(before, after):
    """The rule of `xrun compare`: Welch's interval on the logarithms of the runs' medians."""
    a, b = np.log(np.median(before, 1)), np.log(np.median(after, 1))
    va, vb = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return b.mean() - a.mean(), student.ppf(0.975, freedom) * np.sqrt(va + vb)


def resampled(side, blocks):
    drawn = side[rng.integers(0, len(side), (RESAMPLES, len(side)))]
    if blocks:
        drawn = np.take_along_axis(drawn, rng.integers(0, drawn.shape[2], drawn.shape), 2)
    return np.log(np.median(drawn, 2)).mean(1)


def hierarchical(before, after):
    """Resamples runs, then blocks within each run."""
    n = len(before)
    error = np.sqrt((resampled(before, True).var() + resampled(after, True).var()) * n / (n - 1))
    difference = np.log(np.median(after, 1)).mean() - np.log(np.median(before, 1)).mean()
    return difference, student.ppf(0.975, 2 * (n - 1)) * error


def percentile(before, after):
    """Takes the middle 95 % of the differences of resampled runs."""
    low, middle, high = np.quantile(resampled(after, False) - resampled(before, False), [0.025, 0.5, 0.975])
    return middle, (middle - low, high - middle)


def blocks_as_samples(before, after):
    """Treats every block as an independent measurement."""
    a, b = np.log(before).ravel(), np.log(after).ravel()
    return b.mean() - a.mean(), 1.96 * np.sqrt(a.var(ddof=1) / a.size + b.var(ddof=1) / b.size)


def verdict(difference, reach):
    below, above = reach if isinstance(reach, tuple) else (reach, reach)
    ratio, low, high = np.exp([difference, difference - below, difference + above])
    if low > 1 and ratio > 1 + MIN_EFFECT and not high <= 1 + MIN_EFFECT:
        return "faster"
    return "slower" if high < 1 and ratio < 1 - MIN_EFFECT and not low >= 1 - MIN_EFFECT else None


def share(runs, neighbours, rule, factor, which):
    found = 0
    for _ in range(COMPARISONS):
        first = rng.integers(0, len(runs) - 2 * RUNS + 1)
        drawn = runs[first : first + 2 * RUNS] if neighbours else runs
        drawn = drawn[rng.permutation(len(drawn))[: 2 * RUNS]]
        found += verdict(*rule(drawn[:RUNS], drawn[RUNS:] * factor)) in which
    return f"{100 * found / COMPARISONS:.1f} %"


def main():
    with BLOCKS.open() as file:
        rows = [(label, np.array(values, float)) for label, *values in csv.reader(file)]
    machines = [("quiet-b", False), ("quiet-c", False), ("quiet", True), ("busy", False), ("busy", True)]
    for label, neighbours in machines:
        runs = np.array([values for name, values in rows if name.startswith(label)])
        cells = []
        for rule in (welch, hierarchical, percentile, blocks_as_samples):
            wrong = share(runs, neighbours, rule, 1.0, ("faster", "slower"))
            cells.append(f"{wrong}, {share(runs, neighbours, rule, 0.95, ('slower',))}")
        print(f"| {label}{', neighbours' if neighbours else ''} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
