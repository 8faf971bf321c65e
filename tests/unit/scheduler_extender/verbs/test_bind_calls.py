"""Bind calls that don't go with the pod they name."""

from dataclasses import replace

import pytest

from tests.unit.scheduler_extender.bind_setup import POD, Desk
from tests.unit.scheduler_extender.builders import a_pod


async def test_a_bind_that_names_another_pod_than_its_uid_does_is_refused() -> None:
    desk = Desk(a_pod(POD))

    answer = await desk.bind(pod=replace(POD, name="another"))

    assert "another pod" in answer
    assert (desk.api.bindings, desk.held_cards()) == ([], 0)


@pytest.mark.parametrize("version", [None, "", 7, [None]])
async def test_a_pod_without_a_version_is_not_bound_because_nothing_would_fence_that(version: object) -> None:
    pod = a_pod(POD)
    pod["metadata"]["resourceVersion"] = version
    desk = Desk(pod)

    answer = await desk.bind()

    assert "resourceVersion" in answer
    assert (desk.api.bindings, desk.held_cards()) == ([], 0)
