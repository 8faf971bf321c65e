"""Where NetworkPolicies let pods go, beyond what the table of services says by name."""

import pytest

from tests.charts.test_rendering import only, preset, settings_of
from tests.cluster.helm import Document, Helm

pytestmark = pytest.mark.real


def let_out(documents: list[Document], name: str) -> set[tuple[str, int]]:
    """Addresses and ports; `pods` for pods of any namespace."""
    return {
        (peer.get("ipBlock", {}).get("cidr", "pods"), port["port"])
        for rule in only(documents, "NetworkPolicy", name)["spec"]["egress"]
        for peer in rule["to"]
        if "podSelector" not in peer
        for port in rule["ports"]
    }


def test_pods_get_names_from_a_cache_on_their_node_and_credentials_from_their_cloud(helm: Helm) -> None:
    documents = helm.render("gpuloom")

    names = [one["metadata"]["name"] for one in documents if one["kind"] == "NetworkPolicy"]
    for name in names:
        assert {("pods", 53), ("169.254.20.10/32", 53)} <= let_out(documents, name), name
    for service in ("autoscaler", "cost-engine"):
        reached = let_out(documents, f"gpuloom-{service}")
        # Of AWS and Azure, of GKE, and of EKS Pod Identity.
        assert {("169.254.169.254/32", 80), ("169.254.169.252/32", 988), ("169.254.170.23/32", 80)} <= reached
        # A database may be a pod, which to Cilium is in no block of addresses.
        assert ("pods", 5432) in reached


def test_services_reach_agents_that_are_on_the_network_of_their_node(helm: Helm) -> None:
    documents = helm.render("gpuloom", *preset("aws"))

    for caller in ("discovery", "cost-engine", "optimizer", "mig-controller"):
        assert ("0.0.0.0/0", 50052) in let_out(documents, f"gpuloom-{caller}")


def test_services_on_machines_of_your_own_ask_the_prometheus_that_comes_along(helm: Helm) -> None:
    documents = helm.render("gpuloom", *preset("on-prem"))

    prometheus = only(documents, "Service", "gpuloom-prometheus")["metadata"]
    let_in = {
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"]
        for peer in only(documents, "NetworkPolicy", "gpuloom-prometheus")["spec"]["ingress"][0]["from"]
    }
    for service in ("autoscaler", "console", "controller"):
        told = settings_of(documents, f"gpuloom-{service}")["GPULOOM_PROMETHEUS_URL"]
        assert told == f"http://{prometheus['name']}.{prometheus['namespace']}.svc:9090"
        assert service in let_in
