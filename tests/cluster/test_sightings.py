"""The judge of what containers saw, on made-up sightings."""

from tests.cluster.sightings import Look, Stay, crowded


def a_stay(pod: str, milli: int, from_s: float, until_s: float, device: str = "gpu-0") -> Stay:
    seen = frozenset({device})
    return Stay(pod, "node", milli, [Look(from_s - 1, from_s, seen), Look(until_s, until_s + 1, seen)])


def test_two_whole_owners_at_once_are_found() -> None:
    assert crowded([a_stay("a", 1000, 0, 10), a_stay("b", 1000, 5, 20)]) == ["node gpu-0: a, b"]


def test_a_share_beside_a_whole_owner_is_found() -> None:
    assert crowded([a_stay("a", 250, 0, 10), a_stay("b", 1000, 10, 20)]) == ["node gpu-0: a, b"]


def test_owners_one_after_the_other_share_nothing() -> None:
    assert crowded([a_stay("a", 1000, 0, 10), a_stay("b", 1000, 11, 20)]) == []


def test_shares_that_fit_into_one_card_may_lie_on_it() -> None:
    stays = [a_stay("a", 500, 0, 30), a_stay("b", 500, 5, 20)]

    assert crowded(stays) == []
    assert crowded([*stays, a_stay("c", 100, 6, 7)]) == ["node gpu-0: a, b, c"]


def test_equal_names_of_cards_on_two_nodes_are_two_cards() -> None:
    other = Stay("b", "other", 1000, a_stay("b", 1000, 0, 10).looks)

    assert crowded([a_stay("a", 1000, 0, 10), other]) == []
