"""URLs of object stores, and how long one may stay silent."""

from __future__ import annotations

import pytest

from datapipe.errors import UserError
from datapipe.storage import Root, resolve

STORE = "s3://bucket/folder?endpoint_override=http://127.0.0.1:1&region=us-east-1"


def test_url_with_limits_names_the_same_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    plain, limited = Root(STORE), Root(f"{STORE}&request_timeout=2.5&connect_timeout=1&max_attempts=2")
    assert limited.path("a") == plain.path("a") == "bucket/folder/a"
    assert limited.local is None
    assert limited.within("b").path("a") == "bucket/folder/b/a"


@pytest.mark.parametrize("wrong", ["request_timeout=soon", "request_timeout=0", "max_attempts=0", "connect_timeout=-1"])
def test_url_with_a_wrong_limit_is_refused(wrong: str) -> None:
    with pytest.raises(UserError, match=f"expected positive numbers for {wrong.partition('=')[0]}"):
        resolve(f"s3://bucket/folder?region=us-east-1&{wrong}")


def test_url_with_limits_beside_what_pyarrow_takes_only_there_is_refused() -> None:
    with pytest.raises(UserError, match="tls_verify_certificates excludes max_attempts"):
        resolve("s3://bucket/folder?region=us-east-1&max_attempts=2&tls_verify_certificates=0")


def test_relative_path_is_of_the_working_directory_at_that_moment(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name / "out").mkdir(parents=True)
        (tmp_path / name / "out" / "file").write_text(name)
        monkeypatch.chdir(tmp_path / name)
        assert Root("out").read_bytes("file") == name.encode()
