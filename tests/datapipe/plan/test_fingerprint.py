"""What the code of a kind of task is: what its runner reaches, without the stages it is given."""

from __future__ import annotations

import pytest

from datapipe import catalogue
from datapipe.config import StageUse
from datapipe.plan.fingerprint import reached_by, reached_kernels
from datapipe.stage.documents import DocumentBatch, segmentation

KINDS = ("map", "reduce", "merge", "gather", "sample", "train", "tokenize", "pack")


@pytest.mark.parametrize("kind", KINDS)
def test_code_of_a_kind_is_its_runner_and_what_writes_its_files_and_no_stage(kind: str):
    names = reached_by(kind).names
    assert any(name.endswith(f":run_{kind}") for name in names)
    assert any(name.startswith("datapipe.shards.checksum:") for name in names)
    assert not any(name.startswith(("stages.", "datapipe.config", "datapipe.cli.main", "datapipe.report")) for name in names)


def test_map_reaches_no_segmentation():
    segmentations = {name for name, member in vars(DocumentBatch).items() if isinstance(member, segmentation)}
    assert "english_words" in segmentations
    assert not segmentations & reached_by("map").members("datapipe.stage.documents:DocumentBatch")
    assert segmentations & reached_by("tokenize").members("datapipe.stage.documents:DocumentBatch") == {"words"}


def _stage(name: str, **options: object):
    return catalogue.build_stage(StageUse(name=name, alias=name, options=options, where=""))


def test_kernels_are_those_that_the_stages_and_kinds_use():
    assert reached_kernels([], [_stage("redact.secrets")]) >= {"datapipe.kernels.redact.keywords:find_keywords"}
    by_words = [
        reached_kernels(["map"], [_stage("filter.gopher_repetition", words=words)]) for words in ("whitespace", "english")
    ]
    assert by_words[1] - by_words[0] == {
        "datapipe.kernels.text.english_words:cut_words", "datapipe.kernels.text.english_words:most_english_words",
    }  # fmt: skip
    assert not any("secrets" in name or "fasttext" in name for name in by_words[1])
    assert len(reached_kernels(["map"], [])) < 5
