"""Reads the results of xrun as tables.

    import xrun_trainer
    results = xrun_trainer.load("results")
    results.runs()          # a row per run
    results.curves("loss")  # a row per step of every run
    results.comparisons()   # a row per comparison and measure

Tables are pandas or polars frames, whichever is installed. Importing this package needs neither.
"""

from .comparison import Comparison
from .errors import ResultsError
from .results import Results, load
from .run import Run

__all__ = ["Comparison", "Results", "ResultsError", "Run", "load"]
