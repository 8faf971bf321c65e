"""The files of a run: certificates, machines, and what tells processes and people where everything is."""

import orjson
import yaml

from gpuloom.roster import GRPC, HTTP
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates, tls_files
from gpuloom.runtime.clock import Clock
from gpuloom.sim.machines.cluster import create_machines
from gpuloom.sim.mesh.plan import AGENT, EXPORTER, MeshPlan, central
from gpuloom.sim.processes.ports import HOST


def write_files(plan: MeshPlan, clock: Clock) -> None:
    """Certificates, machines, and the files that tell the processes of each other."""
    directory = plan.directory
    issue_development_certificates(directory.certificates, CertificateOrder(plan.roster.identities), clock)
    create_machines(directory.machines, plan.machines)
    addresses = {
        machine.node: f"{HOST}:{port}"
        for machine, port in zip(plan.machines, plan.ports.agents_grpc, strict=True)
    }
    directory.agents_file.write_bytes(orjson.dumps(addresses, option=orjson.OPT_INDENT_2))
    directory.endpoints_file.write_bytes(orjson.dumps(_endpoints(plan), option=orjson.OPT_INDENT_2))
    directory.prometheus_targets_file.write_bytes(
        orjson.dumps(_prometheus_targets(plan), option=orjson.OPT_INDENT_2)
    )
    directory.kubeconfig.write_text(yaml.safe_dump(kubeconfig(plan.api_url)), encoding="utf-8")


def _endpoints(plan: MeshPlan) -> dict[str, object]:
    """Where the run's services are, for other commands and for people."""
    files = tls_files(plan.directory.certificates, "cli")
    return {
        **{row.name: plan.address(row.name) for row in central(plan.roster) if row.has_port(GRPC)},
        "certificate": str(files.cert_file),
        "key": str(files.key_file),
        "authority": str(files.ca_file),
        "kubernetes": plan.api_url,
        "console": plan.console_url,
        "metrics": plan.metrics_urls,
        "gpu_metrics": plan.exporter_urls,
    }


def _prometheus_targets(plan: MeshPlan) -> list[dict[str, object]]:
    """All that can be scraped, as Prometheus' file_sd_configs want it."""
    central_ports = {row.name: plan.ports.services[row.name][HTTP] for row in central(plan.roster)}
    agents = plan.ports.agents
    groups = {
        **{name: [port] for name, port in central_ports.items()},
        AGENT.name: [ports[HTTP] for ports in agents],
        f"{AGENT.name}-{EXPORTER}": [ports[EXPORTER] for ports in agents],
    }
    return [
        {
            "targets": [f"{HOST}:{port}" for port in ports],
            "labels": {"job": f"gpuloom-{name.replace('_', '-')}"},
        }
        for name, ports in groups.items()
    ]


def kubeconfig(api_url: str) -> dict[str, object]:
    name = "gpuloom-simulated"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": api_url}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": ""}}],
        "current-context": name,
    }
