"""Match conditions of webhooks, by the CEL library of its authors. Standard CEL only; no authorizer."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from cel_expr_python import cel

from gpuloom.errors import InvalidRequestError


def conditions_hold(conditions: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> bool:
    """False if one is false. Raise InvalidRequestError if none is false and one can't be told.

    `variables` are object, oldObject and request.
    """
    unclear = ""
    for condition in conditions:
        try:
            value = _compiled(str(condition.get("expression", ""))).eval(data=dict(variables)).value()
        except RuntimeError as error:
            value = error
        if value is False:
            return False
        if value is not True:
            unclear = unclear or f"match condition {condition.get('name', '')!r}: {value}"
    if unclear:
        raise InvalidRequestError(unclear)
    return True


@lru_cache(maxsize=256)
def _compiled(source: str) -> cel.Expression:
    names = ("object", "oldObject", "request")
    return cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN)).compile(source)
