"""How a `gpuloom` command ends: its exit codes, and a failure as one line."""

FINE = 0
NO = 1
"""The command worked and its answer is no, or something went wrong while it worked."""
USAGE = 2
"""An option, a setting or a file that can't be right."""
UNREACHABLE = 3
"""What the command needs could not be reached or started."""
INTERRUPTED = 130


def one_line(failure: Exception | str) -> str:
    """Without line breaks, whatever the failure's text has in it."""
    text = str(failure)
    if isinstance(failure, OSError) and failure.strerror:
        about = f": {failure.filename}" if failure.filename is not None else ""
        text = f"{failure.strerror}{about}"
    return " ".join(text.split()) or (repr(text) if isinstance(failure, str) else type(failure).__name__)
