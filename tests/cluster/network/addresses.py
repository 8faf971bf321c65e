"""Who has which address in the network of a test cluster. Pure: a number in, addresses out.

The range is RFC 2544's, for benchmarks of network devices: no real network has it, so routes to it on this
machine hide nothing. Each cluster has sixteen networks of it: the nodes', and one for the pods of each node.
"""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from gpuloom.errors import InvalidRequestError

SERVICE_RANGE = "10.96.0.0/24"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_ADDRESS = "10.96.0.10"
CLUSTER_DOMAIN = "cluster.local"
MAX_NODES = 15

_EVERYTHING = ipaddress.IPv4Network("198.18.0.0/15")
_CLUSTERS = tuple(_EVERYTHING.subnets(new_prefix=20))
MAX_CLUSTERS = len(_CLUSTERS)


@dataclass(frozen=True)
class NodeAddresses:
    """`pods` is the range of its pods; `prefix_length` that of the network in which nodes see each other."""

    number: int
    address: str
    prefix_length: int
    pods: str


@dataclass(frozen=True)
class ClusterAddresses:
    """`number` from 0 on, one for each cluster that runs at the same time."""

    number: int

    @property
    def everything(self) -> str:
        return str(_CLUSTERS[self.number])

    @property
    def host(self) -> str:
        """This machine's, where the API server listens."""
        return str(self._networks()[0][1])

    @property
    def prefix_length(self) -> int:
        return self._networks()[0].prefixlen

    def node(self, number: int) -> NodeAddresses:
        """Nodes count from 1. Raise InvalidRequestError if there are too many."""
        if not 1 <= number <= MAX_NODES:
            raise InvalidRequestError(f"a cluster with a network has room for {MAX_NODES} nodes")
        networks = self._networks()
        return NodeAddresses(number, str(networks[0][10 + number]), self.prefix_length, str(networks[number]))

    def nodes(self) -> Iterator[NodeAddresses]:
        """All that there could be."""
        return map(self.node, range(1, MAX_NODES + 1))

    def _networks(self) -> list[ipaddress.IPv4Network]:
        return list(_CLUSTERS[self.number].subnets(new_prefix=24))
