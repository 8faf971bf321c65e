"""A gRPC client of your own: GPU nodes from discovery, and who has devices from the extender.

    python examples/grpc_client.py --discovery HOST:PORT --extender HOST:PORT --certificates FOLDER

The folder holds `client.crt`, `client.key` and `ca.crt`, as `gpuloom run` and `gpuloom certs` write
them; in a cluster they are `tls.crt`, `tls.key` and `ca.crt` of the Secret `<release>-client-tls`. The
identity `client` may call every RPC that the command line may call and that changes nothing. Needs grpcio
and the package gpuloom, for its stubs.
"""

import argparse
from pathlib import Path

import grpc

from gpuloom.v1.discovery_pb2 import WatchClusterRequest
from gpuloom.v1.discovery_pb2_grpc import DiscoveryServiceStub
from gpuloom.v1.scheduler_extender_pb2 import ListAllocationsRequest
from gpuloom.v1.scheduler_extender_pb2_grpc import SchedulerExtenderServiceStub

TIMEOUT_S = 10.0


def connect(address: str, service: str, folder: Path) -> grpc.Channel:
    """Mutual TLS: the server proves itself by the name of its service, whatever address it was reached by."""
    own = "client" if (folder / "client.crt").exists() else "tls"
    credentials = grpc.ssl_channel_credentials(
        root_certificates=(folder / "ca.crt").read_bytes(),
        private_key=(folder / f"{own}.key").read_bytes(),
        certificate_chain=(folder / f"{own}.crt").read_bytes(),
    )
    name = f"{service.replace('_', '-')}.gpuloom"
    return grpc.secure_channel(address, credentials, [("grpc.ssl_target_name_override", name)])


def show_nodes(channel: grpc.Channel) -> None:
    """The first messages of the stream are the full state; deltas follow until the call ends."""
    stream = DiscoveryServiceStub(channel).WatchCluster(WatchClusterRequest(), timeout=TIMEOUT_S)
    for message in stream:
        for node in message.full.nodes:
            state = "; ".join(node.untrusted_reasons) or "trusted"
            print(f"{node.state.node_name}: {len(node.state.gpus)} GPUs, {state}")
        if not message.full.more:
            stream.cancel()
            return


def show_allocations(channel: grpc.Channel) -> None:
    stub, pods, page = SchedulerExtenderServiceStub(channel), set(), ""
    while True:
        answer = stub.ListAllocations(ListAllocationsRequest(page_token=page), timeout=TIMEOUT_S)
        pods |= {entry.pod.uid for entry in answer.entries}
        page = answer.next_page_token
        if not page:
            break
    print(f"{len(pods)} pods have devices")


def main() -> None:
    parser = argparse.ArgumentParser(description="Show GPU nodes and allocations.")
    parser.add_argument("--discovery", required=True, metavar="HOST:PORT")
    parser.add_argument("--extender", required=True, metavar="HOST:PORT")
    parser.add_argument("--certificates", required=True, type=Path, metavar="FOLDER")
    given = parser.parse_args()
    with connect(given.discovery, "discovery", given.certificates) as channel:
        show_nodes(channel)
    with connect(given.extender, "scheduler_extender", given.certificates) as channel:
        show_allocations(channel)


if __name__ == "__main__":
    main()
