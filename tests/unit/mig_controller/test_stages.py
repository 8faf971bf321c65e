"""The states of slices go by one name in the metric, the list and the status."""

from prometheus_client import CollectorRegistry

from services.mig_controller.core.stages import divided
from services.mig_controller.metrics import MigMetrics
from tests.unit.mig_controller.builders import a_card, a_slice, place


def test_a_slice_that_is_about_to_go_is_counted_as_the_status_calls_it() -> None:
    registry = CollectorRegistry()
    going = frozenset({place("1g.5gb@0")})
    card = a_card("n1", a_slice("1g.5gb@0"), a_slice("1g.5gb@1"), a_slice("3g.20gb@4", "team/x"))

    MigMetrics(registry).show([card], {card.uuid: going})

    shown = [one.stage.value for one in divided(card, going).instances]
    counted = {
        state: registry.get_sample_value("gpuloom_mig_controller_devices", {"state": state})
        for state in ("PartitionDestroyed", "Available", "Allocated", "MIGEnabled")
    }
    assert shown == ["PartitionDestroyed", "Available", "Allocated"]
    assert counted == dict.fromkeys(counted, 1.0)
