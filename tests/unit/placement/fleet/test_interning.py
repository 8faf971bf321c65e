from gpuloom.placement.fleet.interning import Interner


def test_equal_things_share_a_number_until_the_last_user_goes() -> None:
    numbers: Interner[str] = Interner()
    first, second = numbers.acquire("a"), numbers.acquire("b")

    assert numbers.acquire("a") == first
    numbers.release(first)
    assert (len(numbers), numbers.users(first)) == (2, 1)
    numbers.release(first)
    assert len(numbers) == 1
    assert numbers.reuses == 0
    assert numbers.acquire("c") == first
    assert numbers.reuses == 1
    assert sorted(numbers.items()) == [(first, "c"), (second, "b")]
    assert numbers.capacity == 2
    assert numbers.thing(second) == "b"
