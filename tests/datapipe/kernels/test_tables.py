"""Tables in the cache of the machine equal those that are built; a change of what builds one makes another file."""

import inspect
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from datapipe.kernels import tables
from datapipe.kernels.redact import emails, phone_words
from datapipe.kernels.text import contractions, marks, unicode_classes

FACTOR = 2


def doubled(count: int) -> np.ndarray:
    return np.arange(count) * FACTOR


def pair() -> tuple[np.ndarray, np.ndarray]:
    return doubled(3), np.ones(2)


@pytest.mark.parametrize(
    "of_characters",
    [
        *(unicode_classes.composition_table, marks.mark_table, contractions.special_cases),
        *(emails._sorts, phone_words._folds, phone_words._table),
    ],
)
def test_stored_tables_equal_built_ones(of_characters, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build = inspect.unwrap(of_characters)
    first, again = tables.stored_table(build)(), tables.stored_table(build)()
    for stored in (first, again):
        assert type(stored) is type(build())
        for array, expected in zip(_arrays(stored), _arrays(build()), strict=True):
            assert np.array_equal(array, expected)
            assert array.dtype == expected.dtype
            assert not array.flags.writeable


def test_stored_table_is_built_once_for_each_argument_and_each_code(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files: list[int] = []
    for count, factor in ((3, 2), (3, 2), (4, 2), (4, 3)):
        monkeypatch.setattr(f"{__name__}.FACTOR", factor)
        assert tables.stored_table(doubled)(count).tolist() == [factor * number for number in range(count)]
        files.append(len(list(tmp_path.glob("datapipe/tables/*"))))
    assert files == [1, 1, 2, 3]


MOVED = b"cdatapipe.moved\nTable\n."  # the pickle of a class that is no longer there


@pytest.mark.parametrize("content", [b"", b"damaged", sha256(MOVED).digest() + MOVED])
def test_stored_table_that_is_damaged_or_cannot_be_kept_is_built_again(content: bytes, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tables.stored_table(pair)()
    (path,) = tmp_path.glob("datapipe/tables/*")
    path.write_bytes(content)
    assert [array.tolist() for array in tables.stored_table(pair)()] == [[0, 2, 4], [1, 1]]
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert [array.tolist() for array in tables.stored_table(pair)()] == [[0, 2, 4], [1, 1]]


def _arrays(table: object) -> list[np.ndarray]:
    return [table] if isinstance(table, np.ndarray) else list(table)  # type: ignore[call-overload]
