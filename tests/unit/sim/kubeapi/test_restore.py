"""A backup of everything, and the way back to it."""

from pathlib import Path

from gpuloom.sim.kubeapi.server import SimKubeApi
from gpuloom.sim.kubeapi.storage.journal import Journal
from gpuloom.sim.kubeapi.verbs.store import Store

from .builders import a_config_map, a_definition, a_pod

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"


def names(store: Store, resource: str) -> list[str]:
    return [obj["metadata"]["name"] for obj in store.select(resource)]


async def test_a_restore_sets_objects_definitions_and_versions_back(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path / "state")
    async with SimKubeApi(journal=journal) as api:
        store = api.store
        store.create("pods", a_pod("kept"))
        store.create("configmaps", a_config_map("deleted"))
        before, backup = store.select("pods"), api.snapshot()
        version = store.resource_version
        store.create("pods", a_pod("later"))
        store.create(DEFINITIONS, a_definition())
        store.delete("configmaps", "deleted")

        await api.restore(backup)

        assert store.select("pods") == before
        assert (names(store, "configmaps"), names(store, DEFINITIONS)) == (["deleted"], [])
        assert store.resource_version == version
        store.create("pods", a_pod("new"))
        assert store.get("pods", "new")["metadata"]["resourceVersion"] == str(int(version) + 1)

    journal, changes = Journal.open(tmp_path / "state")
    journal.close()
    assert names(Store(api._clock, changes=changes), "pods") == ["kept", "new"]
