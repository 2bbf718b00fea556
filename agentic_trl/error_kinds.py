"""Errors that the commands tell from others; imports nothing, so that they can speak where a package is broken."""

WHERE = "\n\nWhere it was raised:\n"
"""What stands between an error's sentence and the traceback of the user's code."""


class FolderInUseError(RuntimeError):
    """Another run is in the output folder; the message is a sentence for the user."""


class BrokenEnvironmentsError(RuntimeError):
    """Too many environments failed; the message is a sentence for the user, with a traceback behind ``WHERE``."""
