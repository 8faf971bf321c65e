"""The registry that a service's metrics live in, with what every process says about itself."""

from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Gauge, PlatformCollector, ProcessCollector


def new_registry(service: str) -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    build_info = Gauge(
        "gpuloom_build_info",
        "Always 1; the labels say which service of which version this is",
        ["service", "version"],
        registry=registry,
    )
    build_info.labels(service, package_version()).set(1)
    return registry


def package_version() -> str:
    try:
        return version("gpuloom")
    except PackageNotFoundError:
        # Run from a source tree that was never installed.
        return "unknown"
