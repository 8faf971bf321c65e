"""What is kept across restarts, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.runtime.clock import Clock, FakeClock, SystemClock
from services.node_agent.nvml.core.health import Condition, XidFault
from services.node_agent.nvml.inventory import Identity
from services.node_agent.nvml.keeper import Keeper
from services.node_agent.nvml.lane import LaneLimits
from services.node_agent.nvml.record import KeptGpu, Record, RecordError, decode, encode

BOOT = "7a1c"

naturals = st.integers(min_value=0, max_value=10**9)
names = st.text(max_size=12)
times = st.floats(min_value=0, max_value=10**9)
placements = st.builds(MigPlacement, start=naturals, profile=names)
faults = st.builds(XidFault, naturals, times, st.none() | placements, names)
instances = st.builds(MigInstance, placements, naturals, naturals, names)
identities = st.builds(
    Identity,
    *(names, names, names, naturals, names, st.none() | naturals, names, names),
    minor=st.none() | naturals,
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    gpus = []
    for index, identity in enumerate(draw(st.lists(identities, max_size=4, unique_by=lambda i: i.uuid))):
        slices = draw(st.lists(st.tuples(instances, naturals), max_size=3))
        gpus.append(
            KeptGpu(
                identity=identity,
                index=index,
                condition=Condition(tuple(draw(st.lists(faults, max_size=3))), draw(st.booleans())),
                mig_enabled=draw(st.booleans()),
                instances=tuple(instance for instance, _ in slices),
                instance_ids=tuple(number for _, number in slices),
            )
        )
    return Record(tuple(gpus))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


def a_record() -> Record:
    identity = Identity("GPU-a", "A100-SXM4-40GB", "ampere", 40960, "00000000:10:00.0", 1, "SN0")
    placement = MigPlacement(4, "3g.20gb")
    condition = Condition((XidFault(95, 12.5, placement, "MIG-a"), XidFault(48, 3.0)), was_lost=True)
    return Record(
        (KeptGpu(identity, 0, condition, True, (MigInstance(placement, 4, 20096, "MIG-a"),), (1,)),)
    )


@given(records())
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert decode(encode(record, BOOT), BOOT) == record


@given(st.text() | json_values.map(json.dumps))
def test_foreign_text_is_refused_and_never_more(text: str) -> None:
    with pytest.raises(RecordError):
        decode(text, BOOT)


@given(st.data())
def test_a_record_with_one_broken_part_is_read_or_refused(data: st.DataObject) -> None:
    found = json.loads(encode(a_record(), BOOT))
    target: Any = found
    while isinstance(target, dict | list) and target:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(target[key], dict | list) or data.draw(st.booleans()):
            target[key] = data.draw(json_values)
            break
        target = target[key]

    try:
        record = decode(json.dumps(found), BOOT)
    except RecordError:
        return

    assert decode(encode(record, BOOT), BOOT) == record


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"boot_id": "other"}, "before the last reboot"),
        ({"version": 2}, "its version is 2, not 1"),
        ({"gpus": 3}, "gpus is missing or of the wrong kind"),
    ],
)
def test_a_record_of_another_boot_or_version_is_refused_with_the_reason(
    change: dict[str, object], reason: str
) -> None:
    text = json.dumps(json.loads(encode(a_record(), BOOT)) | change)

    with pytest.raises(RecordError, match=reason):
        decode(text, BOOT)


def test_two_gpus_never_share_an_index() -> None:
    gpu = a_record().gpus[0]
    twin = replace(gpu, identity=replace(gpu.identity, uuid="GPU-b"))

    with pytest.raises(RecordError, match="share an index"):
        decode(encode(Record((gpu, twin)), BOOT), BOOT)


def a_keeper(folder: Path, boot: str = BOOT, clock: Clock | None = None) -> Keeper:
    boot_id = folder / "boot_id"
    boot_id.write_text(f"{boot}\n")
    return Keeper(folder / "kept", boot_id, clock or SystemClock(), LaneLimits())


async def test_the_next_agent_of_the_same_boot_finds_what_was_kept(tmp_path: Path) -> None:
    await a_keeper(tmp_path).close(a_record())

    same, other = await a_keeper(tmp_path).load(), await a_keeper(tmp_path, "other").load()

    assert same == a_record()
    assert other == Record()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["nvml.json"]


async def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    await a_keeper(tmp_path).close(a_record())
    file = tmp_path / "kept/nvml.json"
    written = file.stat().st_ino

    keeper = a_keeper(tmp_path)
    await keeper.close(await keeper.load())

    assert file.stat().st_ino == written


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"version": 99}'])
async def test_a_broken_file_is_ignored_and_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "kept/nvml.json"
    file.parent.mkdir()
    file.write_bytes(content)

    keeper = a_keeper(tmp_path)
    found = await keeper.load()
    await keeper.close(a_record())

    assert found == Record()
    assert [record.message for record in caplog.records] == ["the record of the GPUs is not used"]
    assert await a_keeper(tmp_path).load() == a_record()


async def test_a_failed_write_is_told_once_and_tried_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    obstacle, clock = tmp_path / "kept", FakeClock()
    obstacle.write_text("a file where the folder should be")
    keeper = a_keeper(tmp_path, clock=clock)

    await keeper.close(a_record())
    await clock.advance(60)
    await keeper.close(a_record())
    obstacle.unlink()
    await keeper.close(a_record())
    too_soon = obstacle.exists()
    await clock.advance(60)
    await keeper.close(a_record())

    assert len(caplog.records) == 1
    assert not too_soon
    assert await a_keeper(tmp_path).load() == a_record()
