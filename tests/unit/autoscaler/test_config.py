"""Settings that would make two owners of one machine, and prices that are none."""

from pathlib import Path

import pytest

from gpuloom.errors import InvalidRequestError
from services.autoscaler.app import _prices
from services.autoscaler.config import CloudsConfig


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ((("a", "asg"), ("b", "asg")), "group asg twice"),
        ((("a", "asg"), ("a", "other")), "pool a twice"),
    ],
)
def test_a_group_belongs_to_one_pool_and_a_pool_has_one_group(
    groups: tuple[tuple[str, str], ...], said: str
) -> None:
    (problem,) = CloudsConfig(aws_groups=groups).problems()

    assert said in problem
    assert not list(CloudsConfig(aws_groups=groups[:1]).problems())


def test_a_price_below_zero_is_refused_and_one_of_zero_is_what_is_paid_for_already(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"

    file.write_text('{"g5.xlarge/reserved": 0}')
    (free,) = _prices(CloudsConfig(prices_file=file)).values()
    file.write_text('{"g5.xlarge/spot": -0.4}')
    with pytest.raises(InvalidRequestError, match="below 0"):
        _prices(CloudsConfig(prices_file=file))

    assert free == 0
