"""What is known in advance of GPUs, MIG profiles, link shapes and rentable machines: data, not code."""

from gpuloom.catalog.entries import Catalog, GpuModel, InstanceType, LinkShape, mig_resource, slice_milli
from gpuloom.catalog.loader import CatalogError, build_catalog, load_catalog

__all__ = [
    "Catalog",
    "CatalogError",
    "GpuModel",
    "InstanceType",
    "LinkShape",
    "build_catalog",
    "load_catalog",
    "mig_resource",
    "slice_milli",
]
