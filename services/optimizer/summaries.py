"""What is known of kinds of workloads, from their sketches."""

from dataclasses import replace

from gpuloom.model.optimization import ProfileSummary
from services.optimizer.adapters.store import SqlStore
from services.optimizer.core.sketch import quantile_of
from services.optimizer.engine import Engine
from services.optimizer.profiles import Profiles

MAX_PROFILES = 5_000


class Summaries:
    def __init__(self, profiles: Profiles, store: SqlStore, engine: Engine) -> None:
        self._profiles = profiles
        self._store = store
        self._engine = engine

    async def all(self, namespace: str) -> list[ProfileSummary]:
        sketches = await self._store.sketches()
        found = []
        for key, signature in self._profiles.signatures.items():
            if namespace not in ("", signature.namespace):
                continue
            kept = sketches.get(key, {})
            running = self._profiles.of_signature(key)
            sample = next((self._profiles.running[uid].workload for uid in running), None)
            quantiles = {name: sketch for name, (_, sketch) in kept.items()}
            summary = ProfileSummary(
                signature=key,
                namespace=signature.namespace,
                owner_kind=signature.owner_kind,
                name_stem=signature.stem,
                image=signature.image,
                request=signature.request,
                runs=max((runs for runs, _ in kept.values()), default=0),
                running=len(running),
                utilization_median=quantile_of(quantiles.get("utilization"), 0.5),
                memory_mib_high=quantile_of(quantiles.get("memory_mib"), 0.9),
                duration_s_median=quantile_of(quantiles.get("duration_s"), 0.5),
                power_w_median=quantile_of(quantiles.get("power_w"), 0.5),
            )
            if sample is not None:
                found_class = self._engine.classify(sample).workload_class
                summary = replace(summary, workload_class=found_class)
            found.append(summary)
        found.sort(
            key=lambda each: (each.namespace, each.owner_kind, each.name_stem, each.image, each.request)
        )
        return found[:MAX_PROFILES]
