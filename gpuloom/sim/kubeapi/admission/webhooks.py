"""Webhook configurations as values, and which of them are asked about a write. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuloom.sim.kubeapi.resources import Resource
from gpuloom.sim.kubeapi.selectors import Selector, label_query

Object = dict[str, Any]

MUTATING_KEY = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
VALIDATING_KEY = "validatingwebhookconfigurations.admissionregistration.k8s.io"
_DEFAULT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Webhook:
    configuration: str
    name: str
    client: Mapping[str, Any]
    rules: tuple[Mapping[str, Any], ...]
    namespaces: Selector
    objects: Selector
    conditions: tuple[Mapping[str, Any], ...]
    timeout_s: float
    fails_open: bool
    side_effects: str
    reinvoked: bool
    exact: bool
    """Only for the versions that its rules name; else for every version of the same object."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """One write, as webhooks are told of it. `old` is absent for a creation, `new` for a deletion."""

    operation: str
    resource: Resource
    version: str
    subresource: str
    namespace: str
    name: str
    old: Object | None
    new: Object | None
    dry_run: bool = False


def read_webhooks(configuration: Object) -> Iterator[Webhook]:
    for one in configuration.get("webhooks") or ():
        yield Webhook(
            configuration=configuration["metadata"]["name"],
            name=str(one.get("name", "")),
            client=one.get("clientConfig") or {},
            rules=tuple(one.get("rules") or ()),
            namespaces=Selector(label_query(one.get("namespaceSelector") or {})),
            objects=Selector(label_query(one.get("objectSelector") or {})),
            conditions=tuple(one.get("matchConditions") or ()),
            timeout_s=float(one.get("timeoutSeconds") or _DEFAULT_TIMEOUT_S),
            fails_open=one.get("failurePolicy") == "Ignore",
            side_effects=str(one.get("sideEffects") or "Unknown"),
            reinvoked=one.get("reinvocationPolicy") == "IfNeeded",
            exact=one.get("matchPolicy") == "Exact",
        )


def is_asked(webhook: Webhook, write: Attributes, namespace: Object | None) -> bool:
    """Do its rules and selectors cover the write? `namespace` is the object's, or itself if it is one."""
    if not any(_rule_covers(rule, webhook.exact, write) for rule in webhook.rules):
        return False
    if namespace is not None and not webhook.namespaces.matches(namespace):
        return False
    return any(webhook.objects.matches(obj) for obj in (write.new, write.old) if obj is not None)


def _rule_covers(rule: Mapping[str, Any], exact: bool, write: Attributes) -> bool:
    resource = write.resource
    versions = (write.version,) if exact else resource.versions
    scope = rule.get("scope") or "*"
    return (
        _names(rule, "operations", write.operation)
        and _names(rule, "apiGroups", resource.group)
        and any(_names(rule, "apiVersions", version) for version in versions)
        and scope in ("*", "Namespaced" if resource.namespaced else "Cluster")
        and any(_covers(str(one), resource.plural, write.subresource) for one in rule.get("resources") or ())
    )


def _names(rule: Mapping[str, Any], field: str, value: str) -> bool:
    given = rule.get(field) or ()
    return "*" in given or value in given


def _covers(pattern: str, plural: str, subresource: str) -> bool:
    wanted, slash, wanted_subresource = pattern.partition("/")
    if wanted not in ("*", plural):
        return False
    return wanted_subresource in ("*", subresource) if slash else not subresource
