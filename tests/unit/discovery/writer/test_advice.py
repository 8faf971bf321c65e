import re

import pytest

from services.discovery.core.findings import Cause, Finding
from services.discovery.core.trust import REASONS
from services.discovery.writer.core.advice import ADVICE, event_message, event_reason


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_a_reason_in_kubernetes_spelling_and_says_what_to_do(cause: Cause) -> None:
    message = event_message(cause, [Finding(cause)])

    assert re.fullmatch(r"([A-Z][a-z]+)+", event_reason(cause))
    assert message == f"The GPUs of this node are not given out: {REASONS[cause]}. {ADVICE[cause]}."


def test_reasons_are_told_apart() -> None:
    assert len({event_reason(cause) for cause in Cause}) == len(Cause)


def test_one_gpu_is_named_with_what_was_seen() -> None:
    finding = Finding(Cause.FOREIGN_PROCESS, "GPU-b", detail="held by a process outside any pod")

    message = event_message(Cause.FOREIGN_PROCESS, [finding])

    assert message == (
        "GPU-b is not given out: a process outside any pod holds a GPU (held by a process outside any pod). "
        "End the process, or run it in a pod that asks for the GPU; nvidia-smi on the node shows it."
    )


def test_many_gpus_are_one_message_that_still_ends_with_what_to_do() -> None:
    findings = [
        Finding(Cause.SECOND_OWNER, f"GPU-{number}", detail=f"{number} is owned by {'many ' * 500}")
        for number in range(8)
    ]

    message = event_message(Cause.SECOND_OWNER, findings)

    assert message.startswith("GPU-0, GPU-1, GPU-2 and 5 more are not given out: ")
    assert message.endswith(f" and 5 more). {ADVICE[Cause.SECOND_OWNER]}.")
    assert len(message) <= 1024


def test_what_costs_the_whole_node_is_said_of_the_node() -> None:
    findings = [Finding(Cause.WRONG_COUNT, "", "uid-a"), Finding(Cause.WRONG_COUNT, "GPU-a", "uid-b")]

    assert event_message(Cause.WRONG_COUNT, findings).startswith("The GPUs of this node are not given out")
