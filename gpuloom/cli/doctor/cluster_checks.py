"""Judges what a cluster has for all services: version, definitions, rights, certificates, clocks. Pure."""

import base64
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from gpuloom.cli.doctor.findings import Finding, failed, first_names, ok, skipped, warning
from gpuloom.cli.doctor.observed import Certificate, Observed, Unread, has_condition, labels_of
from gpuloom.cli.doctor.service_checks import INSTALL
from gpuloom.kube.objects import key_of, metadata_of
from gpuloom.kube.resources import CUSTOM_RESOURCES

OLDEST = (1, 25)
POLICIES_SINCE = (1, 30)
MOST_SKEW_S = 5.0
CERTIFICATE_LEFT = timedelta(days=7)
_WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
PRIORITY_CLASSES = ("gpuloom-low", "gpuloom-medium", "gpuloom-high")


def version(observed: Observed) -> Iterator[Finding]:
    found = observed.version
    if isinstance(found, Unread):
        yield skipped("kubernetes version", found.why)
    elif found < OLDEST:
        yield failed(
            "kubernetes version",
            f"{_dotted(found)} is older than {_dotted(OLDEST)}",
            "upgrade the cluster: rules of custom resources are not evaluated before",
        )
    elif found < POLICIES_SINCE:
        yield warning(
            "kubernetes version",
            f"{_dotted(found)} has no ValidatingAdmissionPolicies",
            "keep the webhook enabled: it guards the annotations of allocations instead",
        )
    else:
        yield ok("kubernetes version", _dotted(found))


def definitions(observed: Observed) -> Iterator[Finding]:
    if isinstance(observed.definitions, Unread):
        yield skipped("custom resources", observed.definitions.why)
        return
    established = {
        metadata_of(definition).get("name")
        for definition in observed.definitions
        if has_condition(definition, "Established")
    }
    wanted = {f"{resource.plural}.{resource.group}" for resource in CUSTOM_RESOURCES}
    remedy = "kubectl apply --server-side -f deploy/crds, or install the chart gpuloom-crds"
    if missing := wanted - established:
        text = f"not installed or not established: {first_names(missing, len(wanted))}"
        yield failed("custom resources", text, remedy)
    known = {metadata_of(one)["name"]: set(_fields_of(one)) for one in observed.definitions}
    older = {
        name: fields
        for one in observed.shipped
        if (name := metadata_of(one)["name"]) in known and (fields := set(_fields_of(one)) - known[name])
    }
    for name, fields in sorted(older.items()):
        text = f"{name} is of an older version: it drops {first_names(fields)}"
        yield failed("custom resources", text, remedy)
    if not missing and not older:
        yield ok("custom resources", f"all {len(wanted)} are established")


def priority_classes(observed: Observed) -> Iterator[Finding]:
    if isinstance(observed.priority_classes, Unread):
        yield skipped("priority classes", observed.priority_classes.why)
        return
    names = {metadata_of(item).get("name") for item in observed.priority_classes}
    if missing := [name for name in PRIORITY_CLASSES if name not in names]:
        yield warning(
            "priority classes",
            f"missing: {first_names(missing)}; a GPUWorkload with that priority can't make its pods",
            "kubectl apply -f deploy/priority-classes.yaml",
        )
    else:
        yield ok("priority classes", first_names(PRIORITY_CLASSES))


def webhooks(observed: Observed) -> Iterator[Finding]:
    if isinstance(observed.webhooks, Unread):
        yield skipped("webhooks", observed.webhooks.why)
        return
    signers = _signers(observed, "webhook")
    remedy = "look at the webhook's log (it writes the bundle), or at cert-manager's CA injector"
    for configuration in observed.webhooks:
        name = f"{configuration.get('kind')} {metadata_of(configuration).get('name', '')}"
        bundles = {
            hook["name"]: (hook.get("clientConfig") or {}).get("caBundle") or ""
            for hook in configuration.get("webhooks") or ()
        }
        unsigned = [hook for hook, bundle in bundles.items() if not bundle]
        foreign = [
            hook
            for hook, bundle in bundles.items()
            if bundle and signers and not signers.intersection(_fingerprints(bundle))
        ]
        if unsigned:
            yield failed("webhooks", f"{name} has no CA bundle for {first_names(unsigned)}", remedy)
        if foreign:
            text = f"{name} trusts another authority than the webhook's for {first_names(foreign)}"
            yield failed("webhooks", text, remedy)
        if not unsigned and not foreign:
            yield ok("webhooks", name)
    if not observed.webhooks and not _is_deployed(observed, "webhook"):
        yield warning("webhooks", "none is registered: pods are not rewritten or checked", INSTALL)
    elif missing := [
        kind for kind in _WEBHOOKS if kind not in {one.get("kind") for one in observed.webhooks}
    ]:
        yield failed("webhooks", f"no {' and no '.join(missing)}: the webhook is asked nothing", INSTALL)


def admission_policies(observed: Observed) -> Iterator[Finding]:
    found = observed.version
    if isinstance(found, Unread) or found < POLICIES_SINCE:
        return
    policies, bindings = observed.admission_policies, observed.admission_bindings
    if isinstance(policies, Unread) or isinstance(bindings, Unread):
        why = policies if isinstance(policies, Unread) else bindings
        yield skipped("admission policies", why.why if isinstance(why, Unread) else "")
        return
    bound = {
        spec.get("policyName")
        for spec in (binding.get("spec") or {} for binding in bindings)
        if "Deny" in (spec.get("validationActions") or ("Deny",))
    }
    for suffix in ("allocation-annotations", "runtime-classes"):
        names = [metadata_of(policy).get("name", "") for policy in policies]
        mine = [name for name in names if name.endswith(suffix)]
        if not mine or not bound.intersection(mine):
            text = f"no bound policy {suffix}"
            yield failed("admission policies", text, f"{INSTALL}; without it anybody may write allocations")
        else:
            yield ok("admission policies", mine[0])


def rights(observed: Observed) -> Iterator[Finding]:
    if isinstance(observed.rights, Unread):
        yield skipped("rights", observed.rights.why)
        return
    missing = [right for right in observed.rights if not right.allowed]
    for right in missing:
        yield failed(
            "rights",
            f"{right.service} ({right.account}) may not {right.verb} {right.resource}",
            f"apply the service's roles again: {INSTALL}",
        )
    if observed.rights and not missing:
        yield ok("rights", f"{len(observed.rights)} checked")


def certificates(observed: Observed) -> Iterator[Finding]:
    if isinstance(observed.certificates, Unread):
        yield skipped("certificates", observed.certificates.why)
        return
    bad = False
    for certificate in observed.certificates:
        finding = _certificate(certificate, observed.now)
        bad = bad or finding is not None
        if finding is not None:
            yield finding
    if observed.certificates and not bad:
        first = min(certificate.ends for certificate in observed.certificates)
        yield ok("certificates", f"{len(observed.certificates)}, the first ends {first:%Y-%m-%d}")
    if not observed.certificates:
        yield failed("certificates", "no Secret has one", "look at the Job <release>-certificates")


def clocks(observed: Observed) -> Iterator[Finding]:
    if isinstance(observed.server_time, Unread):
        yield skipped("clocks", observed.server_time.why)
        return
    here_s = (observed.now - observed.server_time).total_seconds()
    if abs(here_s) > MOST_SKEW_S:
        text = f"this machine is {here_s:+.0f} s beside the API server"
        yield warning(
            "clocks", text, "synchronise this machine's clock; certificates and ages are read by it"
        )
    ahead = {}
    for lease in () if isinstance(observed.node_leases, Unread) else observed.node_leases:
        renewed = _time((lease.get("spec") or {}).get("renewTime"))
        if renewed is not None and (renewed - observed.server_time).total_seconds() > MOST_SKEW_S:
            ahead[key_of(lease)[1]] = renewed
    if ahead:
        yield warning(
            "clocks",
            f"ahead of the API server: {first_names(ahead)}",
            "synchronise the nodes' clocks (chrony, systemd-timesyncd); usage is told apart by time",
        )
    elif abs(here_s) <= MOST_SKEW_S:
        yield ok("clocks", f"within {MOST_SKEW_S:g} s")


def prometheus(observed: Observed) -> Iterator[Finding]:
    found = observed.prometheus
    if isinstance(found, Unread):
        yield skipped("prometheus", found.why, "give its address with --prometheus URL")
    elif found.problem:
        yield failed(
            "prometheus", f"{found.url}: {found.problem}", "check the address, its Service and its pods"
        )
    elif not found.gpu_series:
        yield failed(
            "prometheus",
            f"{found.url} has no DCGM_FI_DEV_GPU_UTIL",
            "scrape the agents' :9400, for example by the chart's PodMonitor (monitoring.podMonitor.enabled)",
        )
    else:
        yield ok("prometheus", f"{found.url} has {found.gpu_series} series of GPU utilisation")


def _fields_of(definition: Mapping[str, Any]) -> Iterator[str]:
    """Every field of every version that it serves, by its path."""
    for one in (definition.get("spec") or {}).get("versions") or ():
        if one.get("served"):
            schema = (one.get("schema") or {}).get("openAPIV3Schema") or {}
            yield from _fields(schema, str(one.get("name")))


def _fields(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    yield path
    for name, inner in (schema.get("properties") or {}).items():
        yield from _fields(inner, f"{path}.{name}")
    if isinstance(items := schema.get("items"), dict):
        yield from _fields(items, f"{path}[]")


def _is_deployed(observed: Observed, service: str) -> bool:
    deployments = () if isinstance(observed.deployments, Unread) else observed.deployments
    return any(labels_of(one).get("app.kubernetes.io/name") == service for one in deployments)


def _signers(observed: Observed, service: str) -> frozenset[str]:
    """Of the service's certificate; none, if that is not known."""
    found = () if isinstance(observed.certificates, Unread) else observed.certificates
    return frozenset().union(*(one.signers for one in found if one.service == service))


def _fingerprints(bundle: str) -> Iterable[str]:
    try:
        authorities = x509.load_pem_x509_certificates(base64.b64decode(bundle))
    except ValueError:
        return ()
    return [authority.fingerprint(SHA256()).hex() for authority in authorities]


def _certificate(certificate: Certificate, now: datetime) -> Finding | None:
    secret, ends = certificate.secret, certificate.ends
    renew = "run the renewal: kubectl create job renew --from=cronjob/<release>-certificates-renewal"
    if certificate.problem:
        return failed("certificates", f"{secret} {certificate.problem}", renew)
    if not certificate.signed:
        return failed("certificates", f"{secret} is not signed by the authority beside it", renew)
    if ends <= now:
        return failed("certificates", f"{secret} ended {ends:%Y-%m-%d %H:%M}", renew)
    if ends - now < CERTIFICATE_LEFT:
        return warning("certificates", f"{secret} ends {ends:%Y-%m-%d %H:%M}", renew)
    return None


def _time(text: str | None) -> datetime | None:
    try:
        return None if not text else datetime.fromisoformat(text)
    except ValueError:
        return None


def _dotted(found: tuple[int, int]) -> str:
    return ".".join(map(str, found))
