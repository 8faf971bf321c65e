"""How objects look on the wire: plain JSON at a version of their group, or a table for people. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import orjson

from gpuloom.runtime.clock import Clock
from gpuloom.sim.kubeapi.endpoints.tables import table
from gpuloom.sim.kubeapi.objects.objects import at_version
from gpuloom.sim.kubeapi.resources import Resource
from gpuloom.sim.kubeapi.storage.collection import Entry, Object
from gpuloom.sim.kubeapi.storage.paging import Page


@dataclass(frozen=True)
class Representation:
    """`table_clock` tells the time by which a table's ages count; without one objects are plain."""

    resource: Resource
    version: str
    table_clock: Clock | None = None

    @cached_property
    def api_version(self) -> str:
        return self.resource.at(self.version)

    @cached_property
    def name(self) -> str:
        """Representations of one resource with equal names encode equally."""
        return self.version if self.table_clock is None else f"{self.version} table"

    def encode(self, obj: Object) -> bytes:
        if self.table_clock is not None:
            return orjson.dumps(table(self.resource, [obj], self.table_clock.now()))
        return orjson.dumps(at_version(self.resource, obj, self.version))

    def encode_entry(self, entry: Entry) -> bytes:
        if self.table_clock is None and self.version == self.resource.versions[0]:
            return entry.encoded()
        return self.encode(entry.obj)

    def encode_page(self, page: Page) -> bytes:
        metadata: Object = {"resourceVersion": str(page.version)}
        if page.continue_token:
            metadata["continue"] = page.continue_token
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
        if self.table_clock is not None:
            objs = [entry.obj for entry in page.entries]
            return orjson.dumps(table(self.resource, objs, self.table_clock.now(), metadata))
        return self._encode_list([self.encode_entry(entry) for entry in page.entries], metadata)

    def encode_objects(self, objs: Sequence[Object], version: int) -> bytes:
        encoded = [orjson.dumps(at_version(self.resource, obj, self.version)) for obj in objs]
        return self._encode_list(encoded, {"resourceVersion": str(version)})

    def _encode_list(self, encoded: list[bytes], metadata: Object) -> bytes:
        return b'{"kind":"%bList","apiVersion":"%b","metadata":%b,"items":[%b]}' % (
            self.resource.kind.encode(),
            self.api_version.encode(),
            orjson.dumps(metadata),
            b",".join(encoded),
        )
