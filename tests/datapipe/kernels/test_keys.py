"""The folder of compiled kernels is that of the processor they were compiled for."""

from __future__ import annotations

from collections.abc import Iterator

import llvmlite.binding as llvm
import pytest

from datapipe.kernels import keys


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    yield
    keys.version_key.cache_clear()


def _key(monkeypatch: pytest.MonkeyPatch, processor: str, **settings: str) -> str:
    keys.version_key.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(llvm, "get_host_cpu_name", lambda: processor)
        for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
            patch.delenv(name, raising=False)
        for name, value in settings.items():
            patch.setenv(name, value)
        return keys.version_key()


def test_version_key_depends_on_the_processor_unless_name_and_features_are_given(monkeypatch) -> None:
    image = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": "+avx2"}
    assert _key(monkeypatch, "znver3") != _key(monkeypatch, "skylake")
    name_alone = {"NUMBA_CPU_NAME": "x86-64-v3"}
    assert _key(monkeypatch, "znver3", **name_alone) != _key(monkeypatch, "skylake", **name_alone)
    assert _key(monkeypatch, "znver3", **image) == _key(monkeypatch, "skylake", **image)
    assert _key(monkeypatch, "znver3", **image) != _key(monkeypatch, "znver3", **image | {"NUMBA_CPU_FEATURES": "+avx"})
