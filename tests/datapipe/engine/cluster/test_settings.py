"""Settings of Ray that cannot work are named with their values before Ray is asked; none of this needs a cluster."""

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datapipe.config import load_mixture
from datapipe.engine.cluster.settings import SOCKET_BYTES, check_address, check_sockets, check_token
from datapipe.engine.run import Run, RunOptions
from datapipe.errors import UserError
from datapipe.storage.root import Root
from tests.support import runs
from tests.support.late_import import late_import


def _refusal(call: Callable[..., object], *args: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*args)
    return str(caught.value)


def test_token_mode_without_a_token_names_variable_file_and_cure(tmp_path: Path) -> None:
    text = _refusal(check_token, {"RAY_AUTH_MODE": "Token"}, tmp_path)
    assert all(part in text for part in ("RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN", str(tmp_path / ".ray/auth_token"), "unset"))
    empty = tmp_path / "empty"
    empty.write_text(" \n")
    for path in (empty, tmp_path / "absent", tmp_path):
        text = _refusal(check_token, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}, tmp_path)
        assert f"RAY_AUTH_TOKEN_PATH={path}" in text


def test_token_is_found_in_the_variable_in_its_file_and_at_home_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / ".ray/auth_token"
    file.parent.mkdir()
    file.write_text("s3cret\n")
    check_token({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "s3cret"}, tmp_path / "other")
    check_token({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}, tmp_path / "other")
    check_token({"RAY_AUTH_MODE": "token"}, tmp_path)
    for mode in ({}, {"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": ""}):
        check_token(mode, tmp_path / "other")


@pytest.mark.parametrize("variable", ["TMPDIR", "RAY_TMPDIR"])
def test_folder_that_is_too_long_for_sockets_names_value_limit_and_cure(variable: str) -> None:
    folder = "/scratch/" + "ö" * 20
    text = _refusal(check_sockets, {variable: folder})
    assert all(
        part in text for part in (f"{variable}={folder} has 49 bytes", f"at most {SOCKET_BYTES} bytes", "RAY_TMPDIR=/tmp")
    )
    most = int(re.search(r"a folder of at most (\d+) bytes", text)[1])  # type: ignore[index]
    check_sockets({variable: "/" * most})
    assert _refusal(check_sockets, {variable: "/" * (most + 1)})


def test_folder_for_sockets_is_that_of_ray_before_that_of_all_programs() -> None:
    check_sockets({"RAY_TMPDIR": "/tmp", "TMPDIR": "/" + 200 * "x"})
    check_sockets({})


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.1.1"])
def test_loopback_address_without_a_head_is_named_as_this_machine_alone(host: str, closed_port: int) -> None:
    text = _refusal(check_address, f"{host}:{closed_port}")
    assert text.startswith(f"--address={host}:{closed_port}: {host}")
    assert "this machine alone" in text
    assert "ray start --head" in text
    text = _refusal(check_address, "auto", {"RAY_ADDRESS": f"{host}:{closed_port}"})
    assert text.startswith(f"RAY_ADDRESS={host}:{closed_port}")


def test_name_that_this_machine_has_for_itself_is_named_with_its_address(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", closed_port))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [entry])
    assert "head7, which is 127.0.1.1 here, is this machine alone" in _refusal(check_address, f"head7:{closed_port}")


def test_address_where_something_listens_or_that_is_no_host_and_port_is_left_to_ray() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_address(f"127.0.0.1:{server.getsockname()[1]}")
    for address in ("auto", "ray://127.0.0.1:10001", "local"):
        check_address(address, {})


def test_other_address_that_does_not_answer_raises_the_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(ConnectionRefusedError):
        check_address("192.0.2.7:6379")


@pytest.mark.medium
@pytest.mark.needs("ray")
def test_cluster_that_cannot_be_joined_is_reported_before_inputs_are_listed(tmp_path: Path, closed_port: int) -> None:
    mixture = load_mixture(runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/absent/*.jsonl}}", "", "tokenizer: none"))
    run = Run(mixture, lambda event: None, RunOptions(engine="ray", address=f"127.0.0.1:{closed_port}"))
    assert "no Ray head listens there" in _refusal(run.execute)


@pytest.mark.needs("ray")
@pytest.mark.parametrize(
    ("address", "parts"), [(None, ("did not start", "/tmp/ray", "leave out --engine ray")), ("auto", ("at auto", "ray start"))]
)
def test_what_ray_says_when_it_does_not_start_is_told_with_what_to_do(
    address: str | None, parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup.")  # as ray/_private/node.py raises it

    monkeypatch.setattr("ray.init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    text = _refusal(late_import("datapipe.engine.ray").RayEngine, Root("out"), None, address)
    assert all(part in text for part in ("The current node timed out during startup. ", *parts))
