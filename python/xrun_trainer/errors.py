"""The error of this package."""


class ResultsError(ValueError):
    """Raised for a folder, file or name that cannot be read. The message names it and says what to do."""
