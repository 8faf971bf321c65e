"""The simulated cloud's values as JSON, both ways. Pure; InvalidRequestError if it can't read."""

from typing import Any

from gpuloom.errors import InvalidRequestError
from gpuloom.model.node import NodeMode
from gpuloom.sim.cloud.model import (
    CapacityType,
    Instance,
    InstanceGroup,
    InstanceState,
    Offering,
    OfferingKey,
)
from gpuloom.sim.cloud.state import LaunchRequest

Document = dict[str, Any]


def offering_to_json(offering: Offering) -> Document:
    return {
        **_key_to_json(offering.key),
        "provider": offering.provider,
        "gpus": offering.gpus,
        "nanoUsdPerHour": offering.nano_usd_per_hour,
        "stock": offering.stock,
    }


def offering_from_json(document: Document) -> Offering:
    stock = document["stock"]
    return Offering(
        offering_key(document),
        str(document["provider"]),
        int(document["gpus"]),
        int(document["nanoUsdPerHour"]),
        None if stock is None else int(stock),
    )


def instance_to_json(instance: Instance) -> Document:
    return {
        "id": instance.instance_id,
        **_key_to_json(instance.offering),
        "mode": instance.mode.value,
        "state": instance.state.value,
        "launchedAt": instance.launched_at_s,
        "bootsAt": instance.boots_at_s,
        "group": instance.group,
        "token": instance.token,
        "endsAt": instance.ends_at_s,
        "goneAt": instance.gone_at_s,
        "providerId": instance.provider_id,
    }


def instance_from_json(document: Document) -> Instance:
    return Instance(
        instance_id=str(document["id"]),
        offering=offering_key(document),
        mode=NodeMode(document["mode"]),
        state=InstanceState(document["state"]),
        launched_at_s=float(document["launchedAt"]),
        boots_at_s=float(document["bootsAt"]),
        group=str(document["group"]),
        token=str(document["token"]),
        ends_at_s=_seconds(document["endsAt"]),
        gone_at_s=_seconds(document["goneAt"]),
    )


def group_to_json(group: InstanceGroup) -> Document:
    return {
        "name": group.name,
        **_key_to_json(group.offering),
        "minSize": group.min_size,
        "maxSize": group.max_size,
        "desired": group.desired,
        "mode": group.mode.value,
    }


def group_from_json(document: Any) -> InstanceGroup:
    try:
        return InstanceGroup(
            name=str(document["name"]),
            offering=offering_key(document),
            min_size=int(document.get("minSize", 0)),
            max_size=int(document.get("maxSize", 10)),
            desired=int(document.get("desired", 0)),
            mode=NodeMode(document.get("mode", NodeMode.GPULOOM)),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"that is no instance group: {error}") from None


def launch_to_json(request: LaunchRequest) -> Document:
    key = _key_to_json(request.offering)
    return {**key, "token": request.token, "mode": request.mode.value, "group": request.group}


def launch_from_json(document: Any) -> LaunchRequest:
    try:
        return LaunchRequest(
            offering=offering_key(document),
            token=str(document.get("token") or ""),
            mode=NodeMode(document.get("mode", NodeMode.GPULOOM)),
            group=str(document.get("group") or ""),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"that is no launch: {error}") from None


def offering_key(document: Any) -> OfferingKey:
    try:
        return OfferingKey(
            str(document["instanceType"]), str(document["zone"]), CapacityType(document["capacityType"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"that is no offering: {error}") from None


def _key_to_json(key: OfferingKey) -> Document:
    return {"instanceType": key.instance_type, "zone": key.zone, "capacityType": key.capacity_type.value}


def _seconds(value: Any) -> float | None:
    return None if value is None else float(value)
