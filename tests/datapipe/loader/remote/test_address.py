"""URLs of outputs on a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from datapipe.errors import UserError
from datapipe.loader.remote.address import Address, is_service


def test_an_address_names_servers_and_an_output(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("ca")
    (tmp_path / "token").write_text("secret\n")
    url = f"grpc+tls://a,b:1,[::1]:2/runs/web?ca={tmp_path}/ca.pem&token_file={tmp_path}/token&wait_s=1.5"
    address = Address.parse(url)
    assert address.locations == ("grpc+tls://a:8815", "grpc+tls://b:1", "grpc+tls://[::1]:2")
    assert (address.name, address.ca, address.token(), address.wait_s) == ("runs/web", b"ca", "secret", 1.5)
    assert "secret" not in repr(address)
    (tmp_path / "token").write_text("another")
    assert address.token() == "another"
    (tmp_path / "token").write_text("two words")
    with pytest.raises(UserError, match="expected one token"):
        address.token()


def test_only_the_schemes_of_a_service_are_one() -> None:
    assert is_service("grpc://a/x")
    assert is_service("grpc+tls://a/x")
    assert not any(is_service(url) for url in ("runs/x", "s3://a/x", "grpc", "grpcs://a/x", "file:///x"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("grpc://a:b/x", "no host and port"),
        ("grpc://a:70000/x", "no host and port"),
        ("grpc:///x", "no host and port"),
        ("grpc://a,/x", "no host and port"),
        ("grpc://a/x?wait_s=soon", "expected seconds"),
        ("grpc://a/x?wait_s=-1", "expected seconds"),
        ("grpc://a/x?token=secret", "unknown option 'token'"),
        ("grpc://a/..", "no name of an output"),
        ("grpc://t:secret@a/x", "no user and no password"),
    ],
)
def test_a_url_that_is_wrong_is_refused_without_its_secrets(url: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as told:
        Address.parse(url)
    assert "secret" not in str(told.value)
