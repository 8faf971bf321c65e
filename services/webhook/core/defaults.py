"""What the schemas of custom resources can't fill in, because another field or the installation decides.

Only what is absent, or spelled otherwise than here, is changed; so once is as often as twice.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from gpuloom.catalog import load_catalog

Json = Mapping[str, Any]
Default = Callable[[dict[str, Any], str, Collection[str]], None]


def defaulted(kind: str, obj: Json, strategies: Collection[str]) -> Json:
    """The object as it should be stored; itself if nothing is missing, or if it can't be read."""
    default = _DEFAULTS.get(kind)
    spec, metadata = obj.get("spec", {}), obj.get("metadata") or {}
    if default is None or not isinstance(spec, dict) or not isinstance(metadata, dict):
        return obj
    completed = dict(spec)
    default(completed, str(metadata.get("name") or ""), strategies)
    return obj if completed == spec else {**obj, "spec": completed}


def _workload(spec: dict[str, Any], name: str, strategies: Collection[str]) -> None:
    wanted = spec.get("schedulingStrategy")
    if isinstance(wanted, str) and wanted not in strategies:
        # leastloaded and least-loaded are leastLoaded, if only one is.
        alike = [one for one in strategies if _plain(one) == _plain(wanted)]
        if len(alike) == 1:
            spec["schedulingStrategy"] = alike[0]
    _spell_profile(spec, "migProfile")


def _node_config(spec: dict[str, Any], name: str, strategies: Collection[str]) -> None:
    if name:
        spec.setdefault("nodeName", name)


def _sharing_policy(spec: dict[str, Any], name: str, strategies: Collection[str]) -> None:
    config = spec.get("migConfig")
    if isinstance(config, dict):
        spelled = dict(config)
        _spell_profile(spelled, "profile")
        spec["migConfig"] = spelled


def _spell_profile(holder: dict[str, Any], key: str) -> None:
    """As NVIDIA spells it: 1g.5gb+me, also where it is written 1G.5GB or, as in resource names, 1g.5gb.me."""
    written = holder.get(key)
    if not isinstance(written, str) or load_catalog().mig_milli(written):
        return
    lower = written.strip().lower()
    for spelled in (lower, "+".join(lower.rsplit(".", 1))):
        if load_catalog().mig_milli(spelled):
            holder[key] = spelled
            return


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


_DEFAULTS: Mapping[str, Default] = {
    "GPUWorkload": _workload,
    "GPUNodeConfig": _node_config,
    "GPUSharingPolicy": _sharing_policy,
}
