"""Which way devices reach containers on this node. Pure.

The runtime's socket for plugins comes first: what is delivered there, nothing in an image can widen. The
environment, read by NVIDIA's own runtime, is the fallback of a node that has no such socket.
"""

from dataclasses import dataclass

from gpuloom.model.node import Delivery
from services.node_agent.delivery.config import DeliveryWay

SOCKET_PATIENCE_S = 30.0
"""A runtime that restarts has no socket for a while."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What the agent sees of its node.

    `was_connected`: the runtime has been connected before, by this agent. `socket_missing_s`: for how long
    there has been no socket for plugins, 0 while there is one.
    """

    connected: bool
    was_connected: bool
    socket_missing_s: float
    runtime_class: bool


def may_need_environment(sight: Sight) -> bool:
    """Whether it matters if the cluster has the runtime class.

    A runtime that had a socket once has it again when it is back. Whoever it gave devices to still has them,
    and would not be seen by the environment.
    """
    return not sight.was_connected and sight.socket_missing_s >= SOCKET_PATIENCE_S


def delivery_of(way: DeliveryWay, sight: Sight) -> Delivery:
    if way is DeliveryWay.ENV:
        return Delivery.ENV
    if sight.connected:
        return Delivery.NRI
    if way is DeliveryWay.AUTO and may_need_environment(sight) and sight.runtime_class:
        return Delivery.ENV
    return Delivery.NONE
