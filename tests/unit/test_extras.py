"""An image holds a service's extra and nothing else, so the service has to start with that alone."""

import subprocess
import sys
from importlib.metadata import distribution, packages_distributions

import pytest
from packaging.requirements import Requirement

from gpuloom.roster import ROSTER, Service

HIDE = """
import sys
hidden = set({hidden!r})
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import {module}.app, {module}.config
"""


def installed_with(extra: str) -> set[str]:
    """The distributions, by normalized name, that come with this extra of ours."""
    found: set[str] = set()
    waiting = [Requirement(f"gpuloom[{extra}]")]
    seen: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        found.add(normalized(wanted.name))
        for text in distribution(wanted.name).requires or ():
            needed = Requirement(text)
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": each}) for each in ("", *wanted.extras)):
                waiting.append(needed)
    return found


def normalized(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


@pytest.mark.parametrize("service", [pytest.param(service, id=service.name) for service in ROSTER])
def test_a_service_needs_nothing_beyond_its_extra(service: Service) -> None:
    own = installed_with(service.extra)
    hidden = sorted(
        module
        for module, owners in packages_distributions().items()
        if not any(normalized(owner) in own for owner in owners)
    )

    program = HIDE.format(hidden=hidden, module=service.module)
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 0, done.stderr[-2000:]
