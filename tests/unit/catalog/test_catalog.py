import tomllib
from collections.abc import Callable
from importlib import resources
from itertools import combinations
from typing import Any

import pytest

from gpuloom.catalog import CatalogError, build_catalog, load_catalog
from gpuloom.catalog.entries import plain_name
from gpuloom.catalog.loader import FILES
from gpuloom.errors import NotFoundError
from gpuloom.model.mig import MigProfile
from gpuloom.model.topology import PcieLevel

Documents = dict[str, dict[str, Any]]


def the_files() -> Documents:
    folder = resources.files("gpuloom.catalog") / "data"
    return {name: tomllib.loads((folder / name).read_text("utf-8")) for name in FILES}


def maximal_layouts(profiles: list[MigProfile]) -> set[frozenset[tuple[str, int]]]:
    """By brute force: grow every layout instance by instance and keep those that nothing more fits into."""
    places = [
        (profile, start, frozenset(range(start, start + profile.memory_slices)))
        for profile in profiles
        for start in profile.starts
    ]

    def grow(layout: frozenset[tuple[str, int]], used: frozenset[int]) -> None:
        room = [(p, start, cells) for p, start, cells in places if not cells & used]
        if not room:
            found.add(layout)
        for profile, start, cells in room:
            larger = layout | {(profile.name, start)}
            if larger not in seen:
                seen.add(larger)
                grow(larger, used | cells)

    found: set[frozenset[tuple[str, int]]] = set()
    seen: set[frozenset[tuple[str, int]]] = set()
    grow(frozenset(), frozenset())
    return found


def is_classic(profile: MigProfile) -> bool:
    double_memory = profile.compute_slices == 1 and profile.memory_slices == 2
    return "+" not in profile.name and "-" not in profile.name and not double_memory


@pytest.mark.parametrize(
    "model", ["A100-SXM4-40GB", "A100-PCIE-80GB", "H100-SXM5-80GB", "H200-SXM5-141GB", "GB200-186GB"]
)
def test_the_classic_profiles_of_an_eight_slice_gpu_make_nineteen_full_layouts(model: str) -> None:
    profiles = [profile for profile in load_catalog().mig_profiles(model) if is_classic(profile)]

    layouts = maximal_layouts(profiles)

    assert len(profiles) == 5
    assert len(layouts) == 19


@pytest.mark.parametrize("model", ["A30", "RTX-PRO-6000"])
def test_the_classic_profiles_of_a_four_part_gpu_make_five_full_layouts(model: str) -> None:
    profiles = [profile for profile in load_catalog().mig_profiles(model) if is_classic(profile)]

    assert len(maximal_layouts(profiles)) == 5


def test_double_memory_slices_are_part_of_the_eight_slice_profiles() -> None:
    profiles = [p for p in load_catalog().mig_profiles("A100-SXM4-40GB") if "+" not in p.name]

    assert len(maximal_layouts(profiles)) == 78


def test_every_profile_fits_its_gpu() -> None:
    for gpu in load_catalog().gpus:
        for profile in gpu.mig_profiles:
            assert profile.memory_mib <= gpu.memory_mib
            assert max(profile.starts) + profile.memory_slices <= gpu.mig_slices
            assert profile.memory_mib * gpu.mig_slices <= gpu.memory_mib * profile.memory_slices * 1.05


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("nvidia-tesla-v100", "V100-SXM2-16GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA-H100-80GB-HBM3", "H100-SXM5-80GB"),
        ("nvidia a100 80gb pcie", "A100-PCIE-80GB"),
        ("NVIDIA_GeForce_RTX_4090", "RTX-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("GH200-96GB", "GH200-96GB"),
    ],
)
def test_a_gpu_is_found_by_any_of_its_names(written: str, name: str) -> None:
    assert load_catalog().gpu(written).name == name


def test_a_family_stands_for_all_its_models() -> None:
    catalog = load_catalog()

    assert catalog.model_names("a100") == (
        "A100-SXM4-40GB",
        "A100-SXM4-80GB",
        "A100-PCIE-40GB",
        "A100-PCIE-80GB",
    )
    assert catalog.model_names("A10") == ("A10",)
    assert catalog.model_names("nvidia-tesla-a100") == ("A100-SXM4-40GB",)
    assert catalog.model_names("GeForce 256") == ()


def test_what_the_catalogue_lacks_is_not_found() -> None:
    catalog = load_catalog()

    for look_up in (
        lambda: catalog.gpu("GeForce 256"),
        lambda: catalog.mig_profiles("GeForce 256"),
        lambda: catalog.topology("ring"),
        lambda: catalog.instance("aws", "p9.huge"),
    ):
        with pytest.raises(NotFoundError):
            look_up()
    assert catalog.find_gpu("GeForce 256") is None


def test_the_hybrid_cube_mesh_has_six_links_per_gpu() -> None:
    shape = load_catalog().shape("dgx-1v")

    for gpu in range(8):
        others = [other for other in range(8) if other != gpu]
        assert sum(shape.topology.nvlink_count(gpu, other) for other in others) == 6
    assert shape.topology.pcie_level(0, 1) is PcieLevel.PIX
    assert shape.topology.pcie_level(3, 4) is PcieLevel.SYS


def test_gpus_nearer_than_across_numa_nodes_share_one() -> None:
    for shape in load_catalog().shapes:
        for a, b in combinations(range(shape.topology.gpu_count), 2):
            if None not in shape.numa and shape.topology.pcie_level(a, b) > PcieLevel.SYS:
                assert shape.numa[a] == shape.numa[b], f"{shape.name} {a},{b}"


def test_an_instance_type_has_its_gpus_and_links() -> None:
    instance = load_catalog().instance("aws", "p3.2xlarge")

    assert (instance.gpu.name, instance.gpu_count, instance.vcpus, instance.memory_gib) == (
        "V100-SXM2-16GB",
        1,
        8,
        61,
    )
    assert load_catalog().instance("gcp", "a2-megagpu-16g").shape.topology.gpu_count == 16
    assert {entry.provider for entry in load_catalog().instances} == {"aws", "azure", "gcp"}


def test_managed_resources_name_every_slice_as_nvidias_plugin_does() -> None:
    names = load_catalog().managed_resources()

    assert {"nvidia.com/gpu", "gpuloom.dev/gpu-milli", "gpuloom.dev/gpu-memory-mib"} <= set(names)
    assert {"nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb.me", "nvidia.com/mig-1g.24gb.me.all"} <= set(
        names
    )
    assert "nvidia.com/mig-1g.24gb-me" in names
    assert list(names) == sorted(set(names))
    assert not any("+" in name for name in names)


def test_a_profile_stands_for_its_share_of_the_memory_slices() -> None:
    catalog = load_catalog()

    assert catalog.mig_milli("1g.5gb") == (125,)
    assert catalog.mig_milli("1g.10gb") == (125, 250)
    assert catalog.mig_milli("3g.20gb") == (500,)
    assert catalog.mig_milli("4g.96gb") == (1000,)
    assert catalog.mig_milli("9g.1gb") == ()


def test_spellings_of_an_architecture_mean_the_same() -> None:
    assert load_catalog().architecture("Ada Lovelace") == "ada"
    assert load_catalog().architecture("AMPERE") == "ampere"
    assert load_catalog().architecture("riva") is None


def test_names_differ_only_by_letters_and_digits() -> None:
    assert plain_name(" NVIDIA  A10G ") == plain_name("nvidia-a10g") == "nvidia-a10g"


def set_value(file: str, section: str, key: str, value: object) -> Callable[[Documents], None]:
    def change(documents: Documents) -> None:
        documents[file][section][0][key] = value

    return change


def drop_key(file: str, section: str, key: str) -> Callable[[Documents], None]:
    def change(documents: Documents) -> None:
        del documents[file][section][0][key]

    return change


def set_profile(key: str, value: object) -> Callable[[Documents], None]:
    def change(documents: Documents) -> None:
        documents["mig.toml"]["geometry"][0]["profiles"][0][key] = value

    return change


def set_cube_row(key: str, row: str) -> Callable[[Documents], None]:
    def change(documents: Documents) -> None:
        documents["topologies.toml"]["topology"][1][key][0] = row

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (set_value("gpus.toml", "gpu", "architecture", "riva"), r"gpus\.toml: gpu T4: architecture 'riva'"),
        (set_value("gpus.toml", "gpu", "memory_mib", 0), r"gpus\.toml: gpu T4: memory_mib must be"),
        (
            set_value("gpus.toml", "gpu", "mig", "none"),
            r"gpus\.toml: gpu T4: mig\.toml has no geometry 'none'",
        ),
        (set_value("gpus.toml", "gpu", "mig", "A100-80GB"), r"gpus\.toml: gpu T4: profile .* more memory"),
        (
            set_value("gpus.toml", "gpu", "aliases", ["NVIDIA L4"]),
            r"gpus\.toml: gpu L4: the name .* belongs to T4",
        ),
        (set_value("gpus.toml", "gpu", "name", "A10"), r"gpus\.toml: gpu A10 is there twice"),
        (drop_key("gpus.toml", "gpu", "family"), r"gpus\.toml: gpu T4: family is missing"),
        (drop_key("gpus.toml", "gpu", "name"), r"gpus\.toml: entry 1 of gpu has no name"),
        (
            set_profile("starts", [4]),
            r"mig\.toml: geometry A30-24GB: profile 1g\.6gb: starts must lie between",
        ),
        (set_profile("starts", [1, 0]), r"mig\.toml: geometry A30-24GB: profile 1g\.6gb: starts must ascend"),
        (set_profile("max", 5), r"mig\.toml: geometry A30-24GB: profile 1g\.6gb: 5 of it"),
        (set_profile("name", "4g.24gb"), r"mig\.toml: geometry A30-24GB: a profile is there twice"),
        (
            set_cube_row("pcie", ". H H H S S S S"),
            r"topologies\.toml: topology dgx-1v: pcie is not symmetric",
        ),
        (set_cube_row("pcie", ". I H H"), r"topologies\.toml: topology dgx-1v: pcie must have 8 rows of 8"),
        (set_cube_row("nvlinks", "0 1 1 2 2 0 0 0"), r"topology dgx-1v: nvlinks: row 0 must have"),
        (set_value("topologies.toml", "topology", "pcie", "Q"), None),
        (set_value("topologies.toml", "topology", "nvlinks", 99), None),
        (set_value("topologies.toml", "topology", "numa", [0, 1]), r"topology single: numa has 2 entries"),
        (set_value("topologies.toml", "topology", "gpus", 65), r"topology single: gpus must be at most 64"),
        (
            set_value("instances.toml", "aws", "gpu", "H900"),
            r"instances\.toml: aws p3\.2xlarge: gpus\.toml has no gpu",
        ),
        (
            set_value("instances.toml", "aws", "topology", "ring"),
            r"aws p3\.2xlarge: topologies\.toml has no topology",
        ),
        (
            set_value("instances.toml", "aws", "gpus", 2),
            r"aws p3\.2xlarge: topology single is for 1 GPUs, not 2",
        ),
    ],
)
def test_a_mistake_is_told_with_its_file_and_entry(
    change: Callable[[Documents], None], told: str | None
) -> None:
    documents = the_files()
    change(documents)

    with pytest.raises(CatalogError, match=told or r"topologies\.toml: topology single: "):
        build_catalog(documents)


def test_nvswitch_without_nvlinks_is_a_mistake() -> None:
    documents = the_files()
    documents["topologies.toml"]["topology"][1]["nvswitch"] = True

    with pytest.raises(CatalogError, match="behind NVSwitch every pair has NVLinks"):
        build_catalog(documents)
