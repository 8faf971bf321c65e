"""AdmissionReview v1: what a webhook is asked, and what its answer means. Pure."""

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import orjson

from gpuloom.sim.kubeapi.admission.webhooks import Attributes, Webhook
from gpuloom.sim.kubeapi.status import ApiError

Object = dict[str, Any]

API_VERSION = "admission.k8s.io/v1"
_USER = {"username": "gpuloom-sim:client", "groups": ["system:authenticated"]}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`patch` holds JSON patch operations."""

    patch: tuple[Object, ...] = ()


class UnusableAnswerError(Exception):
    """The webhook answered, but not with a review of this request."""


def admission_request(write: Attributes, uid: str) -> Object:
    resource = write.resource
    kind = {"group": resource.group, "version": write.version, "kind": resource.kind}
    plural = {"group": resource.group, "version": write.version, "resource": resource.plural}
    request: Object = {
        "uid": uid,
        "kind": kind,
        "resource": plural,
        "requestKind": kind,
        "requestResource": plural,
        "name": write.name,
        "operation": write.operation,
        "userInfo": _USER,
        "object": write.new,
        "oldObject": write.old,
        "dryRun": write.dry_run,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": f"{write.operation.capitalize()}Options"},
    }
    if write.namespace:
        request["namespace"] = write.namespace
    if write.subresource:
        request |= {"subResource": write.subresource, "requestSubResource": write.subresource}
    return request


def admission_review(request: Object) -> Object:
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "request": request}


def read_answer(webhook: Webhook, uid: str, answer: Any) -> Verdict:
    """Raise ApiError for a denial, UnusableAnswerError for what is no answer."""
    response = answer.get("response") if isinstance(answer, dict) else None
    if not isinstance(response, dict):
        raise UnusableAnswerError("Webhook response was absent")
    if answer.get("apiVersion") != API_VERSION or answer.get("kind") != "AdmissionReview":
        raise UnusableAnswerError(f"expected webhook response of {API_VERSION}, Kind=AdmissionReview")
    if response.get("uid") != uid:
        raise UnusableAnswerError(f'expected response.uid="{uid}", got "{response.get("uid", "")}"')
    if response.get("allowed") is not True:
        raise denial(webhook, response.get("status"))
    patch = response.get("patch")
    if patch is None:
        return Verdict()
    if response.get("patchType") != "JSONPatch":
        raise UnusableAnswerError("webhook returned a patch of an unknown type")
    try:
        operations = orjson.loads(base64.b64decode(patch, validate=True))
    except (binascii.Error, orjson.JSONDecodeError, TypeError, ValueError) as error:
        raise UnusableAnswerError(f"the patch can't be read: {error}") from None
    if not isinstance(operations, list):
        raise UnusableAnswerError("the patch is no list of operations")
    return Verdict(tuple(operations))


def denial(webhook: Webhook, result: Any) -> ApiError:
    """As the real server words it; the webhook's own code and reason are kept."""
    result = result if isinstance(result, dict) else {}
    said = result.get("message") or result.get("reason")
    denied = f'admission webhook "{webhook.name}" denied the request'
    message = f"{denied}: {said}" if said else f"{denied} without explanation"
    code = result.get("code")
    details = result.get("details")
    return ApiError(
        code if isinstance(code, int) and code >= 400 else 400,
        message,
        reason=str(result.get("reason") or ""),
        details=details if isinstance(details, dict) else None,
    )


def failure(webhook: Webhook, why: str) -> ApiError:
    return ApiError(500, f'Internal error occurred: failed calling webhook "{webhook.name}": {why}')
