"""The error of this package."""


class ResultsError(ValueError):
    """A folder, file or name that cannot be read; the message names it and what to do."""
