from prometheus_client import generate_latest

from gpuloom.runtime.metrics import new_registry, package_version


def test_every_registry_says_which_service_of_which_version_it_belongs_to() -> None:
    registry = new_registry("discovery")

    labels = {"service": "discovery", "version": package_version()}
    assert registry.get_sample_value("gpuloom_build_info", labels) == 1


def test_a_registry_has_the_process_and_the_platform() -> None:
    exposed = generate_latest(new_registry("discovery")).decode()

    assert "process_cpu_seconds_total" in exposed
    assert "python_info" in exposed
