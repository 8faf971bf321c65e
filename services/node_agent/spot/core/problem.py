"""What can be wrong with a metadata service."""

from enum import StrEnum

from gpuloom.errors import GpuloomError


class Problem(StrEnum):
    """UNREACHABLE: no connection, or it broke off. REFUSED: a status that answers no question."""

    UNREACHABLE = "unreachable"
    SLOW = "slow"
    REFUSED = "refused"
    MALFORMED = "malformed"


class MetadataError(GpuloomError):
    """The metadata service did not say whether there is a notice."""

    def __init__(self, problem: Problem, text: str) -> None:
        super().__init__(text)
        self.problem = problem
