"""Near duplicates: what meets, who survives, and what the options do."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from datapipe.documents import DocumentBatch
from datapipe.errors import UserError
from stages.dedup.minhash import Minhash
from tests.meetings import batch_of, dropped, meet_all, opened, place
from tests.oracles import minhash as oracle


def _opened(seed: int = 1, **options: object) -> Minhash:
    return opened(Minhash.model_validate(options), "dedup.minhash", seed)


def _text(seed: int, num_words: int = 300) -> list[str]:
    return [f"w{number}" for number in np.random.default_rng(seed).integers(0, 50_000, num_words)]


def _family(seed: int) -> list[str]:
    """A text, the same with one word changed, with its case and punctuation changed, and longer by two words."""
    words = _text(seed)
    changed = [*words[:150], "other", *words[151:]]
    return [" ".join(words), " ".join(changed), ", ".join(words).upper() + "!", " ".join([*words, "and", "more"])]


def test_minhash_families_of_near_duplicates_keep_one_each() -> None:
    texts = _family(1) + _family(2) + [" ".join(_text(3)), " ".join(_text(4))]
    assert dropped(_opened(), texts) == {1: 0, 2: 0, 3: 0, 5: 4, 6: 4, 7: 4}


@pytest.mark.parametrize(("keep", "survivor"), [("first", 0), ("longest", 2), ("shortest", 0)])
def test_minhash_keep_policy_chooses_the_survivor(keep: str, survivor: int) -> None:
    assert set(dropped(_opened(keep=keep), _family(5)).values()) == {survivor}


def test_minhash_keep_random_depends_on_the_seed_alone() -> None:
    families = [text for seed in range(10, 20) for text in _family(seed)]
    first, second = (dropped(_opened(seed=seed, keep="random"), families) for seed in (1, 2))
    assert first == dropped(_opened(seed=1, keep="random"), families)
    assert first != second
    assert len(first) == len(second) == 30


def test_minhash_short_texts_meet_only_equal_words() -> None:
    texts = ["One two", "one, two.", "two one", "", "", "!!", "one two three four", "one two three four five"]
    assert dropped(_opened(), texts) == {1: 0}


def test_minhash_rows_are_documents_by_bands_in_order() -> None:
    stage, batch = _opened(bands=3, rows=2), batch_of(["a b c d e", "a b", "", "b c d e f g"])
    rows = stage.emit(batch)["bands"]
    assert [place(key) for key in rows.column("key").to_pylist()] == [0, 0, 0, 1, 3, 3, 3]


def test_minhash_rows_of_a_text_are_pinned() -> None:
    """Changing these hashes makes every earlier run's signatures worthless: a breaking change."""
    rows = _opened(bands=2, rows=3).emit(batch_of(["Call me Ishmael, some years ago", "never mind"]))["bands"]
    assert rows.column("hash").to_pylist() == [16462863794123311122, 16814233213356597642, 17878405009042051988]


def test_minhash_split_batches_emit_the_same_rows() -> None:
    stage, batch = _opened(), batch_of([*_family(1), "", "x", "a b c d e f"])
    parts = [stage.emit(batch.slice(start, stop)) for start, stop in ((0, 1), (1, 5), (5, 5), (5, 7))]
    for name, rows in stage.emit(batch).items():
        assert pa.Table.from_batches([part[name] for part in parts]).equals(pa.Table.from_batches([rows]))


def test_minhash_batch_read_back_from_disk_emits_the_same_rows(tmp_path: Path) -> None:
    stage, batch = _opened(), batch_of(_family(1))
    with pa.ipc.new_file(str(tmp_path / "batch.arrow"), batch.record.schema) as writer:
        writer.write_batch(batch.record)
    mapped = pa.ipc.open_file(pa.memory_map(str(tmp_path / "batch.arrow"))).get_batch(0)
    assert stage.emit(DocumentBatch(mapped)) == stage.emit(batch)


def test_minhash_pickled_stage_emits_the_same() -> None:
    stage = _opened(threshold=0.8)
    assert pickle.loads(pickle.dumps(stage)).emit(batch_of(_family(1))) == stage.emit(batch_of(_family(1)))


def test_minhash_unverified_drops_carry_the_similarity_from_which_documents_meet() -> None:
    drops = meet_all(_opened(bands=20, rows=5, verify="none"), [batch_of(["a b c d e f"] * 2)])["drops"]
    assert drops.column("value").to_pylist() == [0.5493]


@pytest.mark.parametrize(("threshold", "num_perm"), [(0.5, None), (0.7, None), (0.9, 256)])
def test_minhash_threshold_chooses_bands_and_rows_that_meet_there(threshold: float, num_perm: int | None) -> None:
    bands, rows = Minhash(threshold=threshold, num_perm=num_perm).banding()
    assert bands * rows <= (num_perm or 112)
    assert abs((1 / bands) ** (1 / rows) - threshold) < 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0.8, "bands": 20}, "either threshold or bands and rows"),
        ({"num_perm": 128}, "14 bands of 8 rows take 112"),
        ({"threshold": 1.0}, "threshold"),
        ({"ngram": 0}, "ngram"),
        ({"jaccard": 0.8}, "jaccard"),
    ],
)
def test_minhash_options_that_contradict_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Minhash.model_validate(options)


def test_minhash_threshold_out_of_reach_is_refused() -> None:
    with pytest.raises(UserError, match="no two bands of 2 permutations"):
        _opened(threshold=0.99, num_perm=2)


def _read(path: Path) -> list[dict[str, str]]:
    with zstandard.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _clusters(dropped: dict[int, int], num_docs: int) -> list[int]:
    return [dropped.get(place, place) for place in range(num_docs)]


@pytest.mark.real
def test_minhash_press_releases_planted_pairs_are_found_and_no_other(real_data: Path) -> None:
    rows = _read(real_data / "dedup" / "ndd_100_news.jsonl.zst")
    place = {row["id"]: number for number, row in enumerate(rows)}
    planted = {frozenset((place[row["id"]], place[f"ndd/{row['near_dup_of']}"])) for row in rows if row["near_dup_of"]}
    found = {frozenset(pair) for pair in dropped(_opened(), [row["text"] for row in rows]).items()}
    assert found == planted


@pytest.mark.real
def test_minhash_editions_of_a_book_meet_where_their_similarity_says(real_data: Path) -> None:
    rows = _read(real_data / "dedup" / "gutenberg_editions.jsonl.zst")
    texts = [row["text"] for row in rows]
    cluster = _clusters(dropped(_opened(), texts), len(texts))
    for a in range(len(texts)):
        for b in range(a):
            if cluster[a] == cluster[b]:
                assert rows[a]["work"] == rows[b]["work"]
            elif rows[a]["work"] == rows[b]["work"]:
                assert oracle.jaccard(texts[a].encode(), texts[b].encode(), 5) < 0.9
