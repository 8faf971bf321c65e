"""Which image runs a model, from a ConfigMap that an operator keeps."""

import logging
import re

import yaml

from gpuloom.kube.cache import Change
from gpuloom.kube.client import KubeClient
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.listing import Selection
from gpuloom.kube.resources import CONFIGMAPS
from gpuloom.runtime.clock import Clock
from services.controller.core.manifests import Image

_MAX_ENTRY = 4096
_NO_KEY = re.compile(r"[^-._A-Za-z0-9]")

_log = logging.getLogger(__name__)


class ModelImages:
    def __init__(
        self, client: KubeClient, clock: Clock, namespace: str, name: str, default: str | None
    ) -> None:
        selection = Selection(namespace, field_selector=f"metadata.name={name}")
        self.informer = Informer(client, CONFIGMAPS, clock, InformerOptions(selection=selection))
        self.informer.on_change(self._changed)
        self._default = None if default is None else Image(default)
        self._images: dict[str, Image] = {}

    def of(self, model: str) -> Image | None:
        # A ConfigMap can't have the key meta-llama/Llama-3.1-8B.
        return self._images.get(_NO_KEY.sub("_", model), self._default)

    def _changed(self, change: Change) -> None:
        data = (change.new or {}).get("data") or {}
        self._images = {}
        for model, entry in sorted(data.items()):
            image = read_image(str(entry))
            if image is None:
                _log.warning("entry of the image map is no image", extra={"model": model})
            else:
                self._images[model] = image


def read_image(entry: str) -> Image | None:
    """A plain image name, or YAML with `image` and `command`; None if it is neither."""
    try:
        document = yaml.safe_load(entry) if len(entry) <= _MAX_ENTRY else None
    except (yaml.YAMLError, ValueError, RecursionError):
        # ValueError: what looks like a date and is none.
        return None
    if isinstance(document, str) and document and not any(char.isspace() for char in document):
        return Image(document)
    if not isinstance(document, dict) or not isinstance(document.get("image"), str):
        return None
    command = document.get("command") or []
    if not isinstance(command, list):
        return None
    return Image(document["image"], tuple(str(word) for word in command))
