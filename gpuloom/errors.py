"""The errors that cross module borders. Their text is for the caller, so it never names internals.

Only `rpc/interceptors.py` turns them into gRPC status codes and back.
"""


class GpuloomError(Exception):
    """Anything we raise on purpose."""


class InvalidRequestError(GpuloomError):
    """The caller sent something malformed; the text says what and what would be right."""


class NotFoundError(GpuloomError):
    """What the caller named does not exist."""


class ConflictError(GpuloomError):
    """The object changed, exists already, or a precondition does not hold; read again before retrying."""


class NotAllowedError(GpuloomError):
    """This caller may not do this."""


class NotReadyError(GpuloomError):
    """Not synced, not leader, or draining; the same call may succeed soon."""


class UnavailableError(GpuloomError):
    """The other side can't be reached or broke off; whether it acted is not known."""


class DeadlineError(GpuloomError):
    """Time ran out; whether the other side acted is not known."""


class TooLargeError(GpuloomError):
    """A message or a queue is beyond its bound."""
