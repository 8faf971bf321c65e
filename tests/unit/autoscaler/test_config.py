"""Settings that would make two owners of one machine."""

import pytest

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
