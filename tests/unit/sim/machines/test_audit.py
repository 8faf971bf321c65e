import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import NodeMode
from gpuloom.sim.machines.audit import AuditReport, FindingKind, LiveAudit, audit, audit_machine
from gpuloom.sim.machines.journal import (
    EntryKind,
    Journal,
    JournalEntry,
    ParsedJournal,
    encode_entry,
    missing_entries,
    parse_journal,
    read_journal,
)
from tests.unit.sim.builders import a_machine, a_ref, hardware, share, whole

NVIDIA = hardware(NodeMode.NVIDIA)
GPULOOM = hardware(NodeMode.GPULOOM)
UUIDS = [gpu.uuid for gpu in GPULOOM.gpus]
CARD_MIB = GPULOOM.gpus[0].memory_mib
TIME = "2026-01-01T00:00:00.000000Z"


def start(name: str, *devices: AllocatedDevice) -> JournalEntry:
    return JournalEntry(0, TIME, EntryKind.START, a_ref(name), devices)


def end(name: str, *devices: AllocatedDevice) -> JournalEntry:
    return JournalEntry(0, TIME, EntryKind.END, a_ref(name), devices)


def refused(name: str, count: int, resource: str = "nvidia.com/gpu") -> JournalEntry:
    return JournalEntry(
        0, TIME, EntryKind.REFUSED, a_ref(name), resource=resource, requested=count, reason="too few"
    )


def judge(entries: Sequence[JournalEntry], machine: object = GPULOOM) -> AuditReport:
    lines = [
        encode_entry(
            JournalEntry(number, e.time, e.kind, e.pod, e.devices, e.resource, e.requested, e.reason)
        )
        for number, e in enumerate(entries, start=1)
    ]
    return audit_machine(machine, parse_journal(b"".join(lines)))  # type: ignore[arg-type]


def kinds(report: AuditReport) -> list[FindingKind]:
    return [finding.kind for finding in report.findings]


def test_owners_one_after_the_other_are_fine() -> None:
    card = whole(UUIDS[0])

    report = judge([start("a", card), end("a", card), start("b", card), end("b", card)])

    assert report.clean
    assert (report.starts, report.ends) == (2, 2)


@pytest.mark.parametrize(
    ("entries", "kind"),
    [
        ([start("a", whole(UUIDS[0])), start("b", whole(UUIDS[0]))], FindingKind.TWO_WHOLE_OWNERS),
        ([start("a", whole(UUIDS[0]), whole(UUIDS[0]))], FindingKind.TWO_WHOLE_OWNERS),
        ([start("a", share(UUIDS[0], 100, 1)), start("b", whole(UUIDS[0]))], FindingKind.WHOLE_BESIDE_SHARE),
        (
            [start("a", share(UUIDS[0], 600, 1)), start("b", share(UUIDS[0], 401, 1))],
            FindingKind.SHARES_ABOVE_CARD,
        ),
        (
            [start("a", share(UUIDS[0], 100, CARD_MIB)), start("b", share(UUIDS[0], 100, 1))],
            FindingKind.MEMORY_ABOVE_CARD,
        ),
        ([start("a", whole(UUIDS[0])), start("a", whole(UUIDS[1]))], FindingKind.STARTED_TWICE),
        ([start("a", whole("GPU-elsewhere", 0))], FindingKind.UNKNOWN_DEVICE),
        ([end("a", whole(UUIDS[0]))], FindingKind.CORRUPT_JOURNAL),
    ],
)
def test_each_way_to_go_wrong_is_found(entries: list[JournalEntry], kind: FindingKind) -> None:
    assert kinds(judge(entries)) == [kind]


def test_mig_instances_have_one_owner_and_exclude_their_card() -> None:
    machine = hardware(mig=True)
    uuid = machine.gpus[0].uuid
    instance = AllocatedDevice(DeviceRef(uuid, MigPlacement(4, "1g.5gb")), 125, 4864)
    neighbour = AllocatedDevice(DeviceRef(uuid, MigPlacement(5, "1g.5gb")), 125, 4864)
    absent = AllocatedDevice(DeviceRef(uuid, MigPlacement(6, "1g.5gb")), 125, 4864)

    side_by_side = judge([start("a", instance), start("b", neighbour)], machine)
    twice = judge([start("a", instance), start("b", instance)], machine)
    mixed = judge([start("a", instance), start("b", share(uuid, 100, 100))], machine)
    unknown = judge([start("a", absent)], machine)

    assert side_by_side.clean
    assert kinds(twice) == [FindingKind.TWO_WHOLE_OWNERS]
    assert kinds(mixed) == [FindingKind.CARD_BESIDE_INSTANCE]
    assert kinds(unknown) == [FindingKind.UNKNOWN_DEVICE]


def test_a_refusal_for_lack_of_cards_is_overbooking() -> None:
    held = [start("a", *(whole(gpu.uuid) for gpu in NVIDIA.gpus[:7]))]

    overbooked = judge([*held, refused("b", 2)], NVIDIA)
    faulty_card = judge([*held, refused("b", 1)], NVIDIA)

    assert kinds(overbooked) == [FindingKind.OVERBOOKED]
    assert faulty_card.clean
    assert faulty_card.refusals == ("n1: team-a/b: too few",)


@given(st.lists(st.integers(0, 2000), max_size=6))
def test_a_journal_that_is_read_while_it_grows_is_judged_as_the_whole_one(cuts: list[int]) -> None:
    first, second = whole(UUIDS[0], CARD_MIB), whole(UUIDS[1], CARD_MIB)
    entries = [start("a", first), start("b", first), end("a", first), end("z", second), start("c", second)]
    content = b'{"seq": \n' + b"".join(
        encode_entry(replace(entry, sequence=number)) for number, entry in enumerate(entries, start=1)
    )
    with TemporaryDirectory() as directory:
        machine = a_machine(Path(directory), "n1", NodeMode.GPULOOM)
        live = LiveAudit(Path(directory))
        for cut in sorted(cuts):
            machine.journal_path.write_bytes(content[:cut])
            live.report()
        machine.journal_path.write_bytes(content)

        seen, judged = live.report(), audit(Path(directory))

    assert (seen.starts, seen.ends) == (judged.starts, judged.ends) == (3, 2)
    assert set(seen.findings) == set(judged.findings)
    assert len(seen.double_bookings) == 1


def test_a_torn_last_line_is_fine_but_a_corrupt_middle_one_is_reported() -> None:
    good = encode_entry(JournalEntry(1, TIME, EntryKind.START, a_ref("a"), (whole(UUIDS[0]),)))
    last = encode_entry(JournalEntry(2, TIME, EntryKind.END, a_ref("a"), (whole(UUIDS[0]),)))

    torn = audit_machine(GPULOOM, parse_journal(good + last[:-9]))
    corrupt = audit_machine(GPULOOM, parse_journal(good + b'{"seq": \n' + last))

    assert torn.clean
    assert kinds(corrupt) == [FindingKind.CORRUPT_JOURNAL]
    assert "line 2" in corrupt.findings[0].message
    assert not corrupt.clean
    assert not corrupt.double_bookings


def test_entries_out_of_order_are_reported() -> None:
    entries = tuple(
        JournalEntry(number, TIME, EntryKind.START, a_ref(name), (whole(uuid),))
        for number, name, uuid in ((2, "a", UUIDS[0]), (1, "b", UUIDS[1]))
    )

    report = audit_machine(GPULOOM, ParsedJournal(entries))

    assert kinds(report) == [FindingKind.CORRUPT_JOURNAL]


def test_all_machines_of_a_directory_are_judged(tmp_path: Path) -> None:
    for node in ("n1", "n2"):
        machine = a_machine(tmp_path, node)
        journal = Journal(machine.journal_path)
        for name in ("a", "b"):
            uuid = machine.hardware.gpus[0 if node == "n2" else "ab".index(name)].uuid
            journal.append(start(name, whole(uuid)))
        journal.close()

    report = audit(tmp_path)

    assert (report.machines, report.starts) == (2, 4)
    assert [finding.node for finding in report.findings] == ["n2"]


def test_a_journal_that_was_torn_goes_on_with_the_next_number(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first = encode_entry(JournalEntry(7, TIME, EntryKind.START, a_ref("a"), (whole(UUIDS[0]),)))
    path.write_bytes(first + b'{"seq": 8, "ti')

    journal = Journal(path)
    journal.append(end("a", whole(UUIDS[0])))
    journal.close()

    assert [entry.sequence for entry in read_journal(path).entries] == [7, 8]
    assert read_journal(path).corrupt == ()


def test_a_restarted_kubelet_completes_its_journal() -> None:
    written = [start("ended", whole(UUIDS[0])), start("running", whole(UUIDS[1]))]
    held = {a_ref("running"): (whole(UUIDS[1]),), a_ref("unwritten"): (whole(UUIDS[2]),)}

    missing = missing_entries(written, held, TIME)

    assert [(entry.kind, entry.pod.name) for entry in missing] == [
        (EntryKind.END, "ended"),
        (EntryKind.START, "unwritten"),
    ]


def legal_journal(rng: random.Random, steps: int) -> list[JournalEntry]:
    """Random starts and ends that never exceed a card."""
    entries: list[JournalEntry] = []
    held: dict[str, tuple[AllocatedDevice, ...]] = {}
    for number in range(steps):
        if held and rng.random() < 0.4:
            name = rng.choice(sorted(held))
            entries.append(end(name, *held.pop(name)))
            continue
        used = {uuid: [d for ds in held.values() for d in ds if d.device.gpu_uuid == uuid] for uuid in UUIDS}
        free = [uuid for uuid in UUIDS if not used[uuid]]
        room = [u for u in UUIDS if sum(d.milli for d in used[u]) <= 700]
        if free and rng.random() < 0.5:
            devices = tuple(whole(uuid) for uuid in rng.sample(free, rng.randint(1, len(free))))
        elif room:
            devices = (share(rng.choice(room), 300, CARD_MIB * 3 // 10),)
        else:
            continue
        held[f"p{number}"] = devices
        entries.append(start(f"p{number}", *devices))
    return entries


@given(seed=st.integers(0, 10_000), steps=st.integers(1, 60))
def test_legal_journals_are_clean(seed: int, steps: int) -> None:
    assert judge(legal_journal(random.Random(seed), steps)).clean


@given(seed=st.integers(0, 10_000), steps=st.integers(1, 60))
def test_an_injected_overlap_is_always_found(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    entries = legal_journal(rng, steps)
    starts = [index for index, entry in enumerate(entries) if entry.kind is EntryKind.START]
    if not starts:
        return
    at = rng.choice(starts)
    stolen = rng.choice(entries[at].devices)
    # Right after the victim's start, so both hold the device; a second whole owner never fits.
    entries.insert(at + 1, start("thief", whole(stolen.device.gpu_uuid)))

    report = judge(entries)

    assert any(a_ref("thief") in finding.pods for finding in report.double_bookings)
