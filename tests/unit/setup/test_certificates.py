"""Certificates are renewed in time, and an authority is replaced without anybody meeting a stranger."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.roster import ROSTER
from gpuloom.rpc.authority import AUTHORITY_LIFETIME
from gpuloom.setup.certificates import CERTIFICATE, HEARD_BY_ALL, TRUSTED, Content, Order, renew

START = datetime(2026, 1, 1, tzinfo=UTC)
DAYS = 90
NOTHING: dict[str, Content] = {identity: {} for identity in ROSTER.identities}


class Cluster:
    """Secrets, and runs of the job that writes them."""

    def __init__(self) -> None:
        self.authority: Content = {}
        self.services: dict[str, Content] = dict(NOTHING)

    def run(self, now: datetime, rotate: bool = False) -> set[str]:
        """Who got something new."""
        renewal = renew(self.authority, self.services, Order(now, DAYS, rotate))
        self.authority = renewal.authority or self.authority
        self.services |= renewal.services
        return set(renewal.services)


def certificate(content: Content) -> x509.Certificate:
    return x509.load_pem_x509_certificate(content[CERTIFICATE])


def is_trusted(shown: Content, by: Content) -> bool:
    for authority in x509.load_pem_x509_certificates(by[TRUSTED]):
        try:
            certificate(shown).verify_directly_issued_by(authority)
        except (ValueError, InvalidSignature):
            continue
        return True
    return False


def all_trust_each_other(before: Mapping[str, Content], after: Mapping[str, Content]) -> bool:
    """Also while some have the new Secret and some the old one."""
    return all(
        is_trusted(shown, reader)
        for shown in (*before.values(), *after.values())
        for reader in (*before.values(), *after.values())
    )


def test_the_first_run_certifies_every_identity_and_the_next_changes_nothing() -> None:
    cluster = Cluster()

    first = cluster.run(START)

    assert first == set(ROSTER.identities)
    assert cluster.run(START + timedelta(days=1)) == set()
    assert all_trust_each_other(cluster.services, cluster.services)


def test_a_certificate_is_renewed_when_a_third_of_its_time_is_left() -> None:
    cluster = Cluster()
    cluster.run(START)
    ends = certificate(cluster.services["discovery"]).not_valid_after_utc

    assert cluster.run(START + timedelta(days=59)) == set()
    assert cluster.run(START + timedelta(days=61)) == set(ROSTER.identities)
    assert certificate(cluster.services["discovery"]).not_valid_after_utc > ends


@pytest.mark.parametrize(
    "damage", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"]
)
def test_a_damaged_secret_is_made_anew_and_the_others_stay(damage: bytes) -> None:
    cluster = Cluster()
    cluster.run(START)
    cluster.services["cli"] = {**cluster.services["cli"], CERTIFICATE: damage}

    assert cluster.run(START + timedelta(hours=1)) == {"cli"}


def test_a_certificate_of_somebody_else_is_not_kept() -> None:
    cluster = Cluster()
    cluster.run(START)
    cluster.services["cli"] = cluster.services["discovery"]

    assert cluster.run(START) == {"cli"}


def test_a_lost_authority_is_replaced_with_everything_it_signed() -> None:
    cluster = Cluster()
    cluster.run(START)
    cluster.authority = {}

    assert cluster.run(START) == set(ROSTER.identities)
    assert all_trust_each_other(cluster.services, cluster.services)


def test_an_authority_is_replaced_in_two_steps_and_nobody_meets_a_stranger() -> None:
    cluster = Cluster()
    cluster.run(START)
    old = dict(cluster.services)

    cluster.run(START + timedelta(days=1), rotate=True)
    told = dict(cluster.services)
    cluster.run(START + timedelta(days=1, minutes=10))
    too_soon = dict(cluster.services)
    cluster.run(START + timedelta(days=1) + HEARD_BY_ALL)
    replaced = dict(cluster.services)

    assert [certificate(one) for one in told.values()] == [certificate(one) for one in old.values()]
    assert too_soon == told
    assert all(certificate(replaced[name]) != certificate(told[name]) for name in told)
    assert all_trust_each_other(old, told)
    assert all_trust_each_other(told, replaced)


@given(st.lists(st.integers(min_value=1, max_value=700), min_size=1, max_size=40))
def test_whenever_it_runs_certificates_are_good_and_trusted(pauses_h: list[int]) -> None:
    cluster = Cluster()
    now = START
    cluster.run(now)
    for pause_h in pauses_h:
        before = dict(cluster.services)
        # As long as no pause is longer than what is left at a renewal.
        now += timedelta(hours=pause_h)
        cluster.run(now)
        assert all(certificate(one).not_valid_after_utc > now for one in before.values())
        assert all_trust_each_other({"one": before["cli"]}, {"other": cluster.services["discovery"]})


def test_an_authority_is_followed_by_another_before_it_ends() -> None:
    cluster = Cluster()
    cluster.run(START)
    now = START
    while now < START + AUTHORITY_LIFETIME * 1.2:
        before = dict(cluster.services)
        now += timedelta(days=25)
        cluster.run(now)
        assert all_trust_each_other({"one": before["cli"]}, {"other": cluster.services["discovery"]})
        assert certificate(cluster.services["cli"]).not_valid_after_utc > now


def test_a_certificate_is_made_anew_when_its_service_is_called_by_another_name() -> None:
    first = renew({}, {"webhook": {}}, Order(START, DAYS))
    authority = first.authority or {}

    moved = Order(START, DAYS, hosts={"webhook": ("gpuloom-webhook.gpus.svc",)})
    second = renew(authority, first.services, moved)
    third = renew(authority, second.services, moved)

    assert second.services.keys() == {"webhook"}
    assert not third.services
