"""Which image runs a model, by a ConfigMap, whose keys can't be spelled as every model is."""

from gpuloom.kube.cache import Change
from gpuloom.runtime.clock import FakeClock
from services.controller.adapters.images import ModelImages
from services.controller.core.manifests import Image


def images(**data: str) -> ModelImages:
    found = ModelImages(None, FakeClock(), "ns", "images", "example/default:1")  # type: ignore[arg-type]
    found._changed(Change(None, {"metadata": {"name": "images"}, "data": data}))
    return found


def test_a_model_is_found_under_its_name_with_what_no_key_may_hold_as_an_underscore() -> None:
    known = images(**{"llama2": "example/llama:2", "meta-llama_Llama-3.1-8B": "example/llama:3"})

    assert known.of("llama2") == Image("example/llama:2")
    assert known.of("meta-llama/Llama-3.1-8B") == Image("example/llama:3")
    assert known.of("mistralai/Mistral-7B") == Image("example/default:1")
