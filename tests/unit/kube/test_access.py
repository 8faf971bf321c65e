import base64
import os
import ssl
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from gpuloom.kube.access import KubeAccess, access_in_cluster, load_access
from gpuloom.kube.credentials import ClientCertificate, ExecCredential, ExecPlugin
from gpuloom.kube.errors import KubeAccessError
from gpuloom.runtime.clock import FakeClock


def a_kubeconfig(
    directory: Path, *, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None
) -> Path:
    path = directory / "config"
    cluster = {"server": "https://kube.example:6443"} | (cluster or {})
    content = {
        "current-context": "dev",
        "contexts": [
            {"name": "dev", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "lost", "context": {"cluster": "elsewhere", "user": "u"}},
        ],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user or {"token": "secret"}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def a_plugin(directory: Path, *answers: dict[str, Any]) -> ExecPlugin:
    """Gives one answer after the other, and notes what it was told."""
    for number, answer in enumerate(answers):
        (directory / f"answer-{number}").write_text(orjson.dumps({"status": answer}).decode())
    script = directory / "plugin.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "here = pathlib.Path(__file__).parent\n"
        "calls = len(list(here.glob('told-*')))\n"
        "(here / f'told-{calls}').write_text(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "sys.stdout.write((here / f'answer-{calls}').read_text())\n"
    )
    return ExecPlugin(sys.executable, (str(script),), cluster={"server": "https://kube.example"})


async def test_the_current_context_gives_server_namespace_and_token(tmp_path: Path) -> None:
    access = load_access(a_kubeconfig(tmp_path), {})

    assert (access.server, access.namespace) == ("https://kube.example:6443", "team")
    assert (await access.credential()).token == "secret"


async def test_kubeconfig_variable_merges_files_and_skips_missing_ones(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(yaml.safe_dump({"users": [{"name": "u", "user": {"token": "first wins"}}]}))
    listed = os.pathsep.join([str(tmp_path / "missing"), str(users), str(a_kubeconfig(tmp_path))])

    access = load_access(None, {"KUBECONFIG": listed})

    assert (await access.credential()).token == "first wins"


async def test_of_several_files_the_first_context_counts_and_paths_are_relative_to_their_own(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (first / "client.crt").write_text("CERT")
    (first / "client.key").write_text("KEY")
    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    content = {"current-context": "dev", "users": [{"name": "u", "user": user}]}
    (first / "config").write_text(yaml.safe_dump(content))
    other = a_kubeconfig(second)
    other.write_text(other.read_text().replace("current-context: dev", "current-context: lost"))

    access = load_access(None, {"KUBECONFIG": os.pathsep.join([str(first / "config"), str(other)])})

    assert access.namespace == "team"
    assert (await access.credential()).certificate == ClientCertificate("CERT", "KEY")


async def test_a_token_file_is_followed_and_its_line_break_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old\n")
    clock = FakeClock()
    access = load_access(a_kubeconfig(tmp_path, user={"tokenFile": "token"}), {}, clock=clock)
    before = await access.credential()

    (tmp_path / "token").write_text("newer\n")
    await clock.advance(60.0)

    assert (before.token, (await access.credential()).token) == ("old", "newer")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: [", "not valid YAML at line 1"),
        ("- list", "not a kubeconfig"),
        ("{}", "no current-context"),
        ("current-context: x", "no context named 'x'"),
    ],
)
def test_an_unusable_kubeconfig_is_told_in_one_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)

    with pytest.raises(KubeAccessError) as caught:
        load_access(path, {})

    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_kubeconfig_is_told_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(KubeAccessError, match="nowhere: no such file"):
        load_access(tmp_path / "nowhere", {})


def test_without_any_source_the_places_looked_at_are_told(tmp_path: Path) -> None:
    with pytest.raises(KubeAccessError, match=r"KUBECONFIG is not set.*\.kube/config does not exist"):
        load_access(None, {"HOME": str(tmp_path)})


def test_a_context_of_an_unknown_cluster_or_user_is_refused(tmp_path: Path) -> None:
    path = a_kubeconfig(tmp_path)

    with pytest.raises(KubeAccessError, match="no cluster named 'elsewhere'"):
        load_access(path, {}, context="lost")
    path.write_text(path.read_text().replace("user: u", "user: nobody"))
    with pytest.raises(KubeAccessError, match="no user named 'nobody'"):
        load_access(path, {})


@pytest.mark.parametrize("user", [{"as": "admin"}, {"auth-provider": {"name": "gcp"}}, {"username": "x"}])
def test_what_would_call_as_somebody_else_is_refused(tmp_path: Path, user: dict[str, Any]) -> None:
    with pytest.raises(KubeAccessError, match="not supported"):
        load_access(a_kubeconfig(tmp_path, user=user), {})


def test_a_proxy_is_refused_rather_than_ignored(tmp_path: Path) -> None:
    with pytest.raises(KubeAccessError, match="proxy-url"):
        load_access(a_kubeconfig(tmp_path, cluster={"proxy-url": "http://proxy"}), {})


def test_a_client_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    data = base64.b64encode(b"pem").decode()

    with pytest.raises(KubeAccessError, match="go together"):
        load_access(a_kubeconfig(tmp_path, user={"client-certificate-data": data}), {})


async def test_certificates_may_be_inline_or_files_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "client.key").write_text("KEY\n")
    data = base64.b64encode(b"CERT").decode()
    path = a_kubeconfig(tmp_path, user={"client-certificate-data": data, "client-key": "client.key"})

    credential = await load_access(path, {}).credential()

    assert credential.certificate == ClientCertificate("CERT", "KEY")
    assert "KEY" not in repr(credential)


def test_skipping_verification_and_a_server_name_are_honoured(tmp_path: Path) -> None:
    options = {"insecure-skip-tls-verify": True, "tls-server-name": "other.example"}
    access = load_access(a_kubeconfig(tmp_path, cluster=options), {})

    context = access.ssl_context(None)

    assert context is not None
    assert context.verify_mode == ssl.CERT_NONE
    assert access.server_name == "other.example"


def test_the_tls_context_is_made_once_and_plain_http_has_none() -> None:
    access = KubeAccess("https://kube.example")

    assert access.ssl_context(None) is access.ssl_context(None)
    assert KubeAccess("http://127.0.0.1:1").ssl_context(None) is None


def test_a_broken_certificate_is_told_in_one_line(tmp_path: Path) -> None:
    data = base64.b64encode(b"no pem at all").decode()
    access = load_access(a_kubeconfig(tmp_path, cluster={"certificate-authority-data": data}), {})

    with pytest.raises(KubeAccessError, match="can't be used"):
        access.ssl_context(None)


async def test_a_service_account_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    (tmp_path / "ca.crt").write_text("pem")
    (tmp_path / "namespace").write_text("gpuloom-system")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    clock = FakeClock()
    access = access_in_cluster(environ, clock, tmp_path)
    before = await access.credential()

    (tmp_path / "new").write_text("newer")
    (tmp_path / "new").rename(tmp_path / "token")
    at_once = await access.credential()
    await clock.advance(1.0)
    after = await access.credential()
    (tmp_path / "token").unlink()
    await clock.advance(1.0)
    kept = await access.credential()

    tokens = [credential.token for credential in (before, at_once, after, kept)]
    assert tokens == ["old", "old", "newer", "newer"]


async def test_a_token_that_the_server_refused_is_looked_up_at_once(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    (tmp_path / "ca.crt").write_text("pem")
    (tmp_path / "namespace").write_text("gpuloom-system")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = access_in_cluster(environ, FakeClock(), tmp_path)
    await access.credential()

    (tmp_path / "token").write_text("newer")
    access.invalidate()

    assert (await access.credential()).token == "newer"
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "gpuloom-system")


async def test_a_token_that_changed_unseen_is_read_after_a_minute(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    (tmp_path / "ca.crt").write_text("pem")
    os.utime(token, ns=(1, 1))
    clock = FakeClock()
    access = access_in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, clock, tmp_path)

    token.write_text("new")
    os.utime(token, ns=(1, 1))
    before = await access.credential()
    await clock.advance(60.0)
    after = await access.credential()

    assert (before.token, after.token) == ("old", "new")


async def test_a_plugin_is_run_again_only_when_its_answer_expires(tmp_path: Path) -> None:
    clock = FakeClock()
    expires = (clock.now() + timedelta(minutes=5)).isoformat()
    plugin = a_plugin(tmp_path, {"token": "one", "expirationTimestamp": expires}, {"token": "two"})
    source = ExecCredential(plugin, clock)

    tokens = [(await source.current()).token, (await source.current()).token]
    await clock.advance(295.0)
    tokens.append((await source.current()).token)

    assert tokens == ["one", "one", "two"]
    told = orjson.loads((tmp_path / "told-0").read_text())
    assert told["spec"] == {"interactive": False, "cluster": {"server": "https://kube.example"}}


async def test_a_certificate_of_a_plugin_is_renewed_too(tmp_path: Path) -> None:
    clock = FakeClock()
    expires = (clock.now() + timedelta(minutes=5)).isoformat()
    first = {"token": "one", "clientCertificateData": "C1", "clientKeyData": "K1"}
    plugin = a_plugin(
        tmp_path,
        first | {"expirationTimestamp": expires},
        {"clientCertificateData": "C2", "clientKeyData": "K2"},
    )
    source = ExecCredential(plugin, clock)

    before = await source.current()
    await clock.advance(295.0)
    after = [await source.current() for _ in range(2)]

    assert (before.token, before.certificate) == ("one", ClientCertificate("C1", "K1"))
    assert [credential.certificate for credential in after] == [ClientCertificate("C2", "K2")] * 2


async def test_a_refused_credential_of_a_plugin_is_not_handed_out_again(tmp_path: Path) -> None:
    source = ExecCredential(a_plugin(tmp_path, {"token": "one"}, {"token": "two"}), FakeClock())
    await source.current()

    source.invalidate()

    assert (await source.current()).token == "two"


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        (ExecPlugin("no-such-plugin-anywhere", install_hint="install it"), r"can't run .*install it"),
        (ExecPlugin(sys.executable, ("-c", "raise SystemExit(3)")), "failed with exit 3"),
        (ExecPlugin(sys.executable, ("-c", "print('hello')")), "did not print an ExecCredential"),
        (ExecPlugin(sys.executable, ("-c", "print('{\"status\": {}}')")), "neither a token"),
    ],
)
async def test_a_plugin_that_fails_is_told_in_one_line(plugin: ExecPlugin, said: str) -> None:
    with pytest.raises(KubeAccessError, match=said):
        await ExecCredential(plugin, FakeClock()).current()


def test_a_plugin_of_the_kubeconfig_is_found_beside_it(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./login"}}
    old = {"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "./login"}}

    load_access(a_kubeconfig(tmp_path, user=user), {})

    with pytest.raises(KubeAccessError, match="exec needs apiVersion"):
        load_access(a_kubeconfig(tmp_path, user=old), {})
