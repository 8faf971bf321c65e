"""What `gpuloom whatif` reads: which pod is meant, how many of it, and what is refused."""

import orjson
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.cli.scheduling.manifests import MAX_BYTES, read_manifest
from gpuloom.codec.pod import pod_request
from gpuloom.errors import InvalidRequestError
from tests.effort import examples

POD = """
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: team}
spec:
  containers:
  - name: main
    resources:
      limits: {nvidia.com/gpu: 2}
"""
SPEC = {"containers": [{"name": "main", "resources": {"limits": {"gpuloom.dev/gpu-milli": 500}}}]}


def controlled(version: str, kind: str, **spec: object) -> bytes:
    template = {"metadata": {"annotations": {"gpuloom.dev/gpu-model": "A100"}}, "spec": SPEC}
    metadata = {"name": "set", "namespace": "team"}
    body = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {**spec, "template": template}}
    return yaml.safe_dump(body).encode()


def test_a_pod_is_one_pod() -> None:
    manifest = read_manifest(POD.encode())

    request = pod_request(orjson.loads(manifest.pod_json))
    assert (manifest.name, manifest.replicas) == ("Pod train", 1)
    assert request is not None
    assert request.gpu.count == 2


@pytest.mark.parametrize(
    ("text", "replicas"),
    [
        (controlled("apps/v1", "Deployment", replicas=3), 3),
        (controlled("apps/v1", "Deployment"), 1),
        (controlled("apps/v1", "StatefulSet", replicas=0), 0),
        (controlled("batch/v1", "Job"), 1),
        (controlled("batch/v1", "Job", parallelism=8), 8),
        (controlled("batch/v1", "Job", parallelism=8, completions=5), 5),
        (controlled("batch/v1", "Job", completions=5), 1),
    ],
)
def test_a_controller_has_as_many_as_run_at_once(text: bytes, replicas: int) -> None:
    manifest = read_manifest(text)

    assert manifest.replicas == replicas
    pod = orjson.loads(manifest.pod_json)
    assert pod["metadata"]["annotations"] == {"gpuloom.dev/gpu-model": "A100"}
    assert pod["metadata"]["namespace"] == "team"
    assert pod["spec"] == SPEC


def test_json_is_read_as_well_as_yaml() -> None:
    from_yaml = read_manifest(POD.encode())
    from_json = read_manifest(orjson.dumps(yaml.safe_load(POD), option=orjson.OPT_INDENT_2))

    assert from_json == from_yaml


def test_an_empty_document_before_the_first_separator_is_none() -> None:
    assert read_manifest(f"# a comment\n---{POD}".encode()).name == "Pod train"


LAUGHS = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"{POD}---{POD}", "several documents; give one object at a time"),
        ("", "the manifest is empty"),
        ("# nothing", "the manifest is empty"),
        ("- a\n- b", "the manifest must be an object"),
        ("just words", "the manifest must be an object"),
        ("apiVersion: v1\nkind: Service", "kind 'Service' ('v1'); give a Pod (v1), a Job (batch/v1)"),
        ("apiVersion: v1\nkind: List\nitems: []", "kind 'List'"),
        ("apiVersion: batch.volcano.sh/v1alpha1\nkind: Job", "kind 'Job' ('batch.volcano.sh/v1alpha1')"),
        ("apiVersion: v1\nkind: Pod", "has no spec"),
        ("apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: 1}", "has no spec.template.spec"),
        ("kind: [Pod]\napiVersion: v1", "manifest.kind must be text"),
        (LAUGHS, "the manifest has a YAML alias; write it out"),
        ("[" * 2000, "nested too deeply"),
        ("{" * 2000, "nested too deeply"),
        ("a: b: c", "can't be read"),
        ("a: !!python/object/apply:os.system [ls]", "can't be read"),
        ("\0", "can't be read"),
        (f"{POD}  hostname: !!set {{a, b}}", "a value that JSON lacks"),
        (f"{POD}  1: x", "a value that JSON lacks"),
        (f"{POD}  priority: {10**30}", "a value that JSON lacks"),
    ],
)
def test_what_is_no_such_object_is_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_manifest(text.encode())

    assert complaint in str(refused.value)


@pytest.mark.parametrize("replicas", [-1, 1.5, "3", True, 2**40])
def test_replicas_that_are_no_number_are_refused(replicas: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"spec\.replicas must be a whole number"):
        read_manifest(controlled("apps/v1", "Deployment", replicas=replicas))


def test_a_huge_file_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(InvalidRequestError, match="at most"):
        read_manifest(b" " * (MAX_BYTES + 1))


@settings(max_examples=examples(150))
@given(st.binary(max_size=200) | st.text(alphabet='{}[]:-&*!#"|>%@ \n\tabk1', max_size=120).map(str.encode))
def test_whatever_the_text_is_it_is_read_or_refused(text: bytes) -> None:
    try:
        read_manifest(text)
    except InvalidRequestError:
        return


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(100))
@given(st.sampled_from(["metadata", "spec"]), st.sampled_from(["template", "replicas", "name"]), _VALUES)
def test_whatever_a_deployment_holds_is_read_or_refused(part: str, key: str, value: object) -> None:
    body = yaml.safe_load(controlled("apps/v1", "Deployment", replicas=1))
    body[part][key] = value

    try:
        manifest = read_manifest(yaml.safe_dump(body).encode())
    except InvalidRequestError:
        return

    assert orjson.loads(manifest.pod_json)["kind"] == "Pod"
