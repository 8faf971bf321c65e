"""Machines for the stand-in library, as the keys of its state."""

from gpuloom.catalog import load_catalog

UNKNOWN_ERROR = 999
GPU_IS_LOST = 15
FUNCTION_NOT_FOUND = 13
NOT_SUPPORTED = 3

RECOVERY_ACTION = "field.230"

# How NVML numbers the profiles of the 8-slice cards: its number, the id of instances, and the name.
_A100_PROFILES = {
    "1g.5gb": (0, 19),
    "2g.10gb": (1, 14),
    "3g.20gb": (2, 9),
    "4g.20gb": (3, 5),
    "7g.40gb": (4, 0),
    "1g.5gb+me": (7, 20),
    "1g.10gb": (9, 15),
}
# Six links of each GPU of a DGX-1 with V100s: four neighbours in the mesh, two of them by a double link.
_DGX1_NEIGHBOURS = {
    0: (1, 2, 3, 3, 4, 4),
    1: (0, 2, 2, 3, 5, 5),
    2: (0, 1, 1, 3, 3, 6),
    3: (0, 0, 1, 2, 2, 7),
    4: (0, 0, 5, 6, 7, 7),
    5: (1, 1, 4, 6, 6, 7),
    6: (2, 4, 5, 5, 7, 7),
    7: (3, 4, 4, 5, 6, 6),
}


def uuid(gpu: int) -> str:
    return f"GPU-{gpu:08x}-1111-5222-8333-444444444444"


def pci(gpu: int) -> str:
    return f"00000000:{0x10 + gpu:02X}:00.0"


def some_gpus(count: int, product: str = "NVIDIA A100-SXM4-40GB") -> dict[str, object]:
    """Working GPUs without links, two NUMA nodes apart from the middle on."""
    keys: dict[str, object] = {
        "gpus": count,
        "all.name": product,
        "all.architecture": 7,
        "all.memory_total_mib": 40960,
        "all.memory_used_mib": 1024,
        "all.memory_reserved_mib": 512,
        "all.utilization": 42,
        "all.power_mw": 61500,
        "all.energy_mj": 1234000,
        "all.temperature_c": 33,
        "all.clock.sm_mhz": 1410,
        "all.clock.memory_mhz": 1215,
        "all.ecc.volatile.uncorrected": 0,
        "all.remapped_rows": "0 0 0 0",
        f"all.{RECOVERY_ACTION}": 0,
        "ancestor": 50,
    }
    for gpu in range(count):
        keys |= {f"gpu.{gpu}.uuid": uuid(gpu), f"gpu.{gpu}.pci": pci(gpu), f"gpu.{gpu}.serial": f"SN{gpu}"}
    return keys


def counting() -> dict[str, object]:
    """What all GPUs count of errors and throttling, each another number."""
    policies = ("power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability")
    fields = (29, 30, 31, 38, 45, 52, 59)
    return {
        "all.clock.event_reasons": 4,
        "all.ecc.volatile.corrected": 11,
        "all.ecc.aggregate.corrected": 12,
        "all.ecc.aggregate.uncorrected": 13,
        **{f"all.violation.{policy}_ns": 1000 + place for place, policy in enumerate(policies)},
        **{f"all.field.{field}": field for field in fields},
    }


def nvswitch_machine(count: int = 8, links: int = 12) -> dict[str, object]:
    links_of_all = {f"all.link.{link}": f"switch 00000000:C{link % 6:X}:00.0" for link in range(links)}
    return some_gpus(count) | links_of_all


def dgx1_machine() -> dict[str, object]:
    keys = some_gpus(8, "Tesla V100-SXM2-16GB") | {"all.memory_total_mib": 16384}
    for gpu, neighbours in _DGX1_NEIGHBOURS.items():
        keys |= {f"gpu.{gpu}.link.{link}": f"gpu {pci(other)}" for link, other in enumerate(neighbours)}
    for a in range(8):
        for b in range(a + 1, 8):
            same_switch, same_socket = a // 2 == b // 2, a // 4 == b // 4
            keys[f"ancestor.{a}.{b}"] = 10 if same_switch else 30 if same_socket else 50
    return keys


def dgx1_links(a: int, b: int) -> int:
    return _DGX1_NEIGHBOURS[a].count(b)


def mig_machine(count: int = 1) -> dict[str, object]:
    keys = some_gpus(count) | {"all.mig.mode": 1}
    for profile in load_catalog().mig_profiles("A100-SXM4-40GB"):
        number, profile_id = _A100_PROFILES[profile.name]
        starts = ",".join(str(start) for start in profile.starts)
        keys[f"all.mig.profile.{number}"] = (
            f"{profile_id} {profile.name} {profile.compute_slices} {profile.memory_slices} "
            f"{profile.max_count} {profile.memory_mib} {14 * profile.compute_slices} {starts}"
        )
    return keys


def seven_each(count: int) -> list[str]:
    """Every GPU cut in seven, as lines of instances."""
    return [f"{gpu} {i + 1} 19 {i} 1 1 MIG-{gpu}-{i}" for gpu in range(count) for i in range(7)]
