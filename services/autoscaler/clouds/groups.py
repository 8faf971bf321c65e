"""A cloud's groups, read one by one: a name that is wrong hides its own pool and no other."""

from collections.abc import Callable, Mapping

from gpuloom.model.policies import CloudProvider
from services.autoscaler.core.lifecycle.machines import CloudView, FailureKind
from services.autoscaler.ports import CloudError

ReadGroup = Callable[[str, str], CloudView]
"""What there is of one group, by its pool and its name. Raise CloudError if it can't be read."""


def read_groups(provider: CloudProvider, groups: Mapping[str, str], read: ReadGroup) -> CloudView:
    """By pool. Only what somebody must mend is left out; where that is everything, it is the cloud's."""
    found: list[CloudView] = []
    unread: dict[str, str] = {}
    for pool, name in sorted(groups.items()):
        try:
            found.append(read(pool, name))
        except CloudError as error:
            if error.kind is not FailureKind.CONFIGURATION:
                raise
            unread[pool] = f"group {name} can't be read: {error}"
    if unread and not found:
        raise CloudError(FailureKind.CONFIGURATION, "; ".join(unread.values()))
    return CloudView(
        provider,
        tuple(one for view in found for one in view.instances),
        tuple(one for view in found for one in view.groups),
        tuple(one for view in found for one in view.failures),
        unread,
    )
