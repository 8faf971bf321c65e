"""Objects that a server has from its start, as a cluster has them once GPULoom is installed."""

from collections.abc import Iterable

from gpuloom.sim.kubeapi.status import ApiError
from gpuloom.sim.kubeapi.storage.collection import Object
from gpuloom.sim.kubeapi.verbs.store import Store


def install(store: Store, manifests: Iterable[Object]) -> None:
    """Create what is missing, and replace what an older version of GPULoom has left in the state file."""
    resources = {(resource.api_version, resource.kind): resource for resource in store.registry}
    for manifest in manifests:
        resource = resources[manifest["apiVersion"], manifest["kind"]]
        try:
            current = store.get(resource, manifest["metadata"]["name"])
        except ApiError as error:
            if error.code != 404:
                raise
            store.create(resource, manifest)
            continue
        version = current["metadata"]["resourceVersion"]
        store.update(resource, {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}})
