"""Whose word the end of a pod is."""

from typing import Any

import pytest

from gpuloom.codec.pod import kubelet_reports_end

TERMINATED = {"name": "main", "state": {"terminated": {"exitCode": 1}}}
RUNNING = {"name": "main", "state": {"running": {}}}
BACK_OFF = {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        pytest.param({"containerStatuses": [TERMINATED, TERMINATED]}, True, id="all terminated"),
        pytest.param(
            {"initContainerStatuses": [TERMINATED], "containerStatuses": [TERMINATED]}, True, id="init"
        ),
        pytest.param({"containerStatuses": [TERMINATED, RUNNING]}, False, id="one runs"),
        pytest.param({"containerStatuses": [BACK_OFF]}, False, id="to be started again"),
        pytest.param({"containerStatuses": [{"name": "main"}]}, False, id="not told"),
        pytest.param(
            {"initContainerStatuses": [RUNNING], "containerStatuses": [TERMINATED]}, False, id="sidecar"
        ),
        pytest.param(
            {"containerStatuses": [TERMINATED], "ephemeralContainerStatuses": [RUNNING]}, False, id="debugged"
        ),
        pytest.param(
            {"containerStatuses": [TERMINATED], "ephemeralContainerStatuses": [BACK_OFF]},
            True,
            id="never debugged",
        ),
        pytest.param({"containerStatuses": []}, True, id="refused by its kubelet"),
        pytest.param({"startTime": None}, False, id="not taken in yet"),
        pytest.param({"startTime": None, "containerStatuses": [TERMINATED]}, False, id="no kubelet's word"),
        pytest.param({"phase": "Running", "containerStatuses": [TERMINATED]}, False, id="between two runs"),
        pytest.param({"phase": "Succeeded"}, False, id="success of nothing"),
    ],
)
def test_the_end_of_a_pod_is_the_kubelets_to_report(status: dict[str, Any], ended: bool) -> None:
    written = {"phase": "Failed", "startTime": "2026-01-01T00:00:00Z"} | status

    assert kubelet_reports_end({"status": written}) is ended
