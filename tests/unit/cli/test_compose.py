"""Where the services of `docker compose up` are, read from what Docker says."""

from typing import Any

from gpuloom.cli.connection.compose import published_addresses


def test_only_published_grpc_ports_of_services_count() -> None:
    containers: list[dict[str, Any]] = [
        {"Service": "discovery", "Publishers": [a_port(50053, 32001), a_port(50053, 0), a_port(8080, 32002)]},
        {"Service": "scheduler-extender", "Publishers": [a_port(8443, 0)]},
        {"Service": "node-agent", "Publishers": [a_port(50052, 32003)]},
        {"Service": "prometheus", "Publishers": [a_port(9090, 32004)]},
        {"Service": "postgres", "Publishers": None},
    ]

    assert published_addresses(containers) == {"GPULOOM_DISCOVERY_ADDRESS": "127.0.0.1:32001"}


def a_port(target: int, published: int) -> dict[str, object]:
    return {"URL": "127.0.0.1", "TargetPort": target, "PublishedPort": published, "Protocol": "tcp"}
