"""AutoscalingPolicies in Kubernetes: read, judged as a set, and told how they stand."""

import logging
from collections.abc import Mapping

from gpuloom.codec.custom.autoscaling import autoscaling_policy, autoscaling_policy_status_to_json
from gpuloom.errors import ConflictError, InvalidRequestError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.conditions import Condition, status_patch, with_conditions
from gpuloom.kube.informer import Informer
from gpuloom.kube.objects import JsonObject, key_of, metadata_of
from gpuloom.kube.resources import AUTOSCALING_POLICIES
from gpuloom.model.policies import NodePool
from gpuloom.runtime.clock import Clock
from services.autoscaler.core.scaling.policies import Effective, effective_policies
from services.autoscaler.core.scaling.policy_status import Memory, Outcome, conditions_of, status_of
from services.autoscaler.nodes.claim_store import WriteTimeout

_log = logging.getLogger(__name__)

_WRITE_S = 5.0


class PolicyStore:
    def __init__(self, client: KubeClient, clock: Clock, write_timeout_s: WriteTimeout) -> None:
        self.informer = Informer(client, AUTOSCALING_POLICIES, clock)
        self._client = client
        self._clock = clock
        self._write_timeout_s = write_timeout_s
        self._unreadable: dict[str, str] = {}

    def effective(self) -> list[Effective]:
        found = []
        for obj in self.informer.objects():
            name = key_of(obj)[1]
            try:
                found.append(autoscaling_policy(obj))
            except InvalidRequestError as error:
                if self._unreadable.get(name) != str(error):
                    self._unreadable[name] = str(error)
                    _log.error("policy can't be read", extra={"policy": name, "error": str(error)})
        return effective_policies(found)

    def pool(self, name: str) -> NodePool | None:
        pools = (pool for one in self.effective() for pool in one.policy.spec.pools)
        return next((pool for pool in pools if pool.name == name), None)

    def pool_labels(self, name: str) -> Mapping[str, str]:
        pool = self.pool(name)
        return {} if pool is None else pool.labels

    async def write_status(self, policy: Effective, outcome: Outcome, memory: Memory) -> None:
        obj = self.informer.get(policy.name)
        if obj is None:
            return
        status = autoscaling_policy_status_to_json(status_of(outcome, memory))
        status["conditions"] = self._conditions(obj, conditions_of(outcome))
        patch = status_patch(obj, status)
        if patch is None:
            return
        try:
            await self._client.patch_status(
                AUTOSCALING_POLICIES, policy.name, None, patch, timeout_s=self._write_timeout_s(_WRITE_S)
            )
        except (ConflictError, NotFoundError) as error:
            _log.info("status not written", extra={"policy": policy.name, "error": str(error)})

    def _conditions(self, obj: JsonObject, wanted: list[Condition]) -> list[JsonObject]:
        before = (obj.get("status") or {}).get("conditions") or []
        generation = metadata_of(obj).get("generation", 0)
        return with_conditions(before, wanted, generation, self._clock.now())
