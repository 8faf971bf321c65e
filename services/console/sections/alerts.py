"""Alerts of ours that fire, from Prometheus, where one is named. Others are other people's business."""

from collections.abc import Mapping

from gpuloom.clients.prometheus import PrometheusClient
from services.console.core.sight import of_the_cluster
from services.console.core.state import Items
from services.console.ports import Source

INTERVAL_S = 15.0
MAX_AGE_S = 120.0
MOST_ALERTS = 200
ALERTS = "alerts"
# The watchdog fires always.
QUERY = 'ALERTS{alertstate="firing", alertname=~"GPULoom.+", alertname!="GPULoomWatchdog"}'
_OWN = ("__name__", "alertname", "alertstate", "severity")


def alerts_source(prometheus: PrometheusClient) -> Source:
    async def read() -> Mapping[str, Items]:
        firing = await prometheus.instant(QUERY, max_age_s=MAX_AGE_S)
        items = {}
        for sample in firing[:MOST_ALERTS]:
            labels = {key: value for key, value in sorted(sample.labels.items()) if key not in _OWN}
            name = sample.labels.get("alertname", "")
            items[f"{name} {labels}"] = {
                "alert": name,
                "severity": sample.labels.get("severity", ""),
                "labels": labels,
            }
        return {ALERTS: items}

    return Source("prometheus", {ALERTS: of_the_cluster}, INTERVAL_S, read)
