"""A whole run over hostile files: the counts of every source are known to the document, and so is each text and each reject.

`tests/stages/read` has what each reader does with damage; here it is what a run makes of it.
"""

import gzip
import io
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from datapipe.errors import UserError
from datapipe.explore.documents import Fate, Inspector
from tests.support import runs

pytestmark = pytest.mark.medium

_STAGES = "stages:\n  - filter.length: {min_words: 3}\n"
_TAIL = "tokenizer: none\nexecution: {split_bytes: 64KiB}\n"
_DEEP = 100_000
_TEXT = "three words here"
_QUOTED = json.dumps(_TEXT).encode()


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """Files of a source, and what a run must make of them.

    Attributes:
        kept: text by (path, position).
        dropped, quarantined: (path, position).
        unreadable: files that are damaged, and from which position on.
    """

    files: Mapping[str, bytes]
    kept: Mapping[tuple[str, int], str] = field(default_factory=dict)
    dropped: frozenset[tuple[str, int]] = frozenset()
    quarantined: frozenset[tuple[str, int]] = frozenset()
    unreadable: frozenset[tuple[str, int]] = frozenset()


def _line(text: Any, **rest: Any) -> bytes:
    return json.dumps({"text": text, **rest}, ensure_ascii=False).encode()


def _of_lines(name: str, lines: list[tuple[bytes, str]]) -> Hostile:
    """A file of lines, each with the text that is kept of it; or "-" where it is dropped, "!" quarantined, "" no document."""
    starts = np.cumsum([0] + [len(line) + 1 for line, _ in lines]).tolist()
    outcomes = {(name, start): outcome for start, (_, outcome) in zip(starts, lines)}
    return Hostile(
        files={name: b"".join(line + b"\n" for line, _ in lines)},
        kept={where: outcome for where, outcome in outcomes.items() if outcome not in ("-", "!", "")},
        dropped=frozenset(where for where, outcome in outcomes.items() if outcome == "-"),
        quarantined=frozenset(where for where, outcome in outcomes.items() if outcome == "!"),
    )


def _good(count: int) -> list[tuple[bytes, str]]:
    texts = [f"good document number {number}" for number in range(count)]
    return [(_line(text, id=number), text) for number, text in enumerate(texts)]


def _parquet(columns: dict[str, Any], **writing: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **writing)
    return sink.getvalue()


def _lines() -> Hostile:
    of_any_id = [(_line(_TEXT, id=value), _TEXT) for value in ("a", 7, 7.5, True, None, 10**40, {"a": [1]})]
    bad = [b"[%s]" % _line(_TEXT), _line(_TEXT) + _line(_TEXT), _line(_TEXT)[:-1], b'{"text": "a \xff b"}', b"\0"]
    bad += [_line(value) for value in (None, 3, [_TEXT], {"text": _TEXT})]
    return _of_lines(
        "a.jsonl",
        [
            *of_any_id,
            (_line("two words"), "-"),
            (_line(""), "-"),
            (b" \t ", ""),
            (b'{"text": "a \\u0000 b"}', "a \0 b"),
            (b'{"text": %s, "x": %s}' % (_QUOTED, b"[" * _DEEP + b"]" * _DEEP), _TEXT),
            (b'{"x":' * _DEEP + b"1" + b"}" * _DEEP, "!"),
            *((line, "!") for line in bad),
            (_line(_TEXT, id="last"), _TEXT),
        ],
    )


def _cut_gzip() -> Hostile:
    """An archive that ends after three quarters: a reject where the last line begins that is not all there."""
    whole = _of_lines("a.jsonl.gz", _good(200))
    stored = gzip.compress(whole.files["a.jsonl.gz"])
    stored = stored[: len(stored) * 3 // 4]
    end = zlib.decompressobj(31).decompress(stored).rfind(b"\n") + 1
    kept = {where: text for where, text in whole.kept.items() if where[1] < end}
    assert 0 < len(kept) < len(whole.kept)
    damage = frozenset({("a.jsonl.gz", end)})
    return Hostile(files={"a.jsonl.gz": stored}, kept=kept, quarantined=damage, unreadable=damage)


def _parquet(columns: dict[str, Any], **writing: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **writing)
    return sink.getvalue()


def _damaged_parquet() -> Hostile:
    """The second of three row groups is damaged in one file, and another is cut short."""
    texts = [f"good document number {number}" for number in range(30)]
    stored = bytearray(_parquet({"text": texts}, row_group_size=10, compression="zstd"))
    column = pq.ParquetFile(io.BytesIO(bytes(stored))).metadata.row_group(1).column(0)
    start = column.dictionary_page_offset
    stored[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    damage = frozenset({("a.parquet", 10), ("b.parquet", 0), ("c.parquet", 0)})
    return Hostile(
        files={"a.parquet": bytes(stored), "b.parquet": bytes(stored[:-20]), "c.parquet": b""},
        kept={("a.parquet", row): texts[row] for row in (*range(10), *range(20, 30))},
        quarantined=damage,
        unreadable=damage,
    )


HOSTILE = {"lines": _lines, "cut_gzip": _cut_gzip, "damaged": _damaged_parquet}
_Run = tuple[dict[str, Hostile], runs.Finished]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> _Run:
    """What each source must give, and one run over them all."""
    folder = tmp_path_factory.mktemp("hostile")
    expected = {name: make() for name, make in HOSTILE.items()}
    sources = ""
    for name, source in expected.items():
        for path, content in source.files.items():
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_bytes(content)
        sources += f"  {name}:\n    path: {folder}/{name}/**\n    keep: [url, x]\n"
    mixture = runs.write_mixture(folder, sources, _STAGES, f"{_TAIL}max_quarantined: 100%\nmax_unreadable_files: 100\n")
    return expected, runs.run_mixture(mixture, make_engine=runs.InProcess)


@pytest.mark.parametrize("source", HOSTILE)
def test_hostile_source_gives_each_document_at_its_position_and_its_report_is_exact(hostile: _Run, source: str) -> None:
    of_all, finished = hostile
    expected, report = of_all[source], finished.report
    inspector = Inspector.open(finished.mixture.output)

    def seen(outcome: Fate) -> dict[tuple[str, int], dict[str, Any]]:
        found = inspector.find(outcome=outcome, source=source, count=10_000)
        return {(document["path"], document["position"]): document for document in found}

    assert {where: document["text"] for where, document in seen("kept").items()} == expected.kept
    assert seen("dropped").keys() == expected.dropped
    quarantined = seen("quarantined")
    assert quarantined.keys() == expected.quarantined
    assert all(each["reason"] == "read" and each["error"] and "\n" not in each["error"] for each in quarantined.values())
    documents = report["sources"][source]["documents"]
    assert documents["read"] == len(expected.kept) + len(expected.dropped) + len(expected.quarantined)
    assert (documents["kept"], documents["quarantined"]) == (len(expected.kept), len(expected.quarantined))
    assert sum(documents["quarantine_reasons"].values()) == len(expected.quarantined)
    assert sum(documents["dropped"].values()) == len(expected.dropped)
    warnings = [each for each in report["warnings"] if (each["kind"], each["source"]) == ("unreadable_files", source)]
    files = [file for warning in warnings for file in warning["files"]]
    assert {(file["path"], file["position"]) for file in files} == expected.unreadable
    assert all(file["error"] for file in files)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("b.jsonl.zst", gzip.compress(_line("lost"))),
        ("b.jsonl", _line("lost")[:-3]),
        ("b.jsonl.gz", gzip.compress(_line("lost"))[:-9]),
        ("b.jsonl.zst", zstandard.compress(b"\n") + b"garbage"),
        ("b.parquet", _parquet({"text": ["lost"]})[:-1]),
    ],
    ids=["gzip as zstd", "cut", "cut gzip", "garbage", "footer"],
)
def test_run_over_an_unreadable_file_fails_and_names_it_however_few_records_that_is(tmp_path, name, content) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"".join(line + b"\n" for line, _ in _good(1500)))
    (tmp_path / name).write_bytes(content)
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: ['{tmp_path}/a.jsonl', '{tmp_path}/b.*']\n", _STAGES, _TAIL)
    with pytest.raises(UserError, match=rf"{name} from .*max_unreadable_files allows 0"):
        runs.run_mixture(mixture, make_engine=runs.InProcess)
    is_found_by_plan = name == "b.parquet"
    assert (tmp_path / "out").exists() is not is_found_by_plan
    done = runs.run_mixture(mixture, make_engine=runs.InProcess, overrides=["max_unreadable_files=1"])
    assert ("web/read" in done.watcher.steps) is is_found_by_plan  # what the first run read is kept
    assert done.report["sources"]["web"]["documents"]["kept"] == 1500
    texts = [warning["text"] for warning in done.report["warnings"] if warning["kind"] == "unreadable_files"]
    assert [f"{name} from " in text for text in texts] == [True]
