"""The Kubernetes objects that come with this version: custom resource definitions and priority classes.

The files are those of `deploy/`. The links beside this module make them part of the installed package.
"""

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import yaml

Manifest = dict[str, Any]

_HERE = "gpuloom.catalog.manifests"
_DEFINITIONS = "crds"
_PRIORITY_CLASSES = "priority-classes.yaml"


@cache
def definitions() -> tuple[Manifest, ...]:
    """Every CustomResourceDefinition, by file name. Shared: read them, never change them."""
    folder = resources.files(_HERE) / _DEFINITIONS
    files = sorted((one for one in folder.iterdir() if one.name.endswith(".yaml")), key=lambda one: one.name)
    return tuple(manifest for file in files for manifest in _documents(file))


@cache
def priority_classes() -> tuple[Manifest, ...]:
    """The PriorityClasses that the priorities of a GPUWorkload stand for."""
    return tuple(_documents(resources.files(_HERE) / _PRIORITY_CLASSES))


def _documents(file: Traversable) -> list[Manifest]:
    # The C loader reads the definitions in a tenth of the time; a simulated API starts with them.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [one for one in yaml.load_all(file.read_text("utf-8"), Loader=loader) if one]
