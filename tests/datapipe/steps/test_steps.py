"""Steps of a plan and their names, the order of stages, the code that a kind of task reaches, and limits that are exact."""

from pathlib import Path

import pytest

from datapipe.config import StageUse, catalogue, load_mixture
from datapipe.config.stage_use import parse_stage
from datapipe.engine.prepare import prepare
from datapipe.errors import UserError
from datapipe.metrics import DocumentCounts
from datapipe.records.source_code import code_of_class
from datapipe.stage import Map
from datapipe.stage.global_stage import Global
from datapipe.steps.counts import SourceCounts, source_over_quarantine_limit
from datapipe.steps.kinds import compile_plan
from datapipe.steps.pipeline import BoundStage, lay_out
from datapipe.steps.stage_order import conversation_warnings, order_warnings
from tests.support import corpora, runs

_STAGES = "stages: [normalize.unicode, filter.length, filter.c4_quality, dedup.minhash, redact.pii]"
_TAIL = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: [64, 32]}"


@pytest.mark.medium
def test_plan_steps_have_names_that_report_what_they_do(tmp_path: Path):
    corpora.write_jsonl(tmp_path / "web.jsonl", corpora.documents(1, 3))
    mixture = load_mixture(runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web.jsonl}}", _STAGES, _TAIL))
    steps = compile_plan(prepare(mixture), lambda fingerprint: None).steps
    assert [(step.id, step.title) for step in steps] == [
        ("web/read", "web: read → normalize → filter"),
        ("dedup.minhash/match-bands", "dedup.minhash: match bands"),
        ("dedup.minhash/fetch-signatures", "dedup.minhash: fetch signatures"),
        ("dedup.minhash/compare", "dedup.minhash: compare"),
        ("dedup.minhash/cluster-1", "dedup.minhash: cluster, round 1"),
        ("dedup.minhash/decide", "dedup.minhash: decide"),
        ("dedup.minhash/decisions", "dedup.minhash: collect decisions by document"),
        ("web/apply-dedup.minhash", "web: apply dedup.minhash → redact"),
        ("web/sample", "web: sample text for the tokenizer"),
        ("tokenizer/train", "train the tokenizer"),
        ("web/tokenize", "web: tokenize and shuffle"),
        ("web/pack", "web: pack into rows of 64"),
        ("web/pack-32", "web: pack into rows of 32"),
    ]
    assert steps[0].label == "read → normalize.unicode → filter.length → filter.c4_quality"


class Clean(Map):
    """Does nothing."""

    def process(self, batch):
        return {}


class Reduce(Global):
    """Finds nothing."""


def _map(name: str) -> BoundStage:
    return BoundStage(name=name, stage=Clean(), digest=name)


def _global(name: str, digest: str = "") -> BoundStage:
    return BoundStage(name=name, stage=Reduce(), digest=digest or name)


def test_lay_out_cuts_segments_at_global_stages():
    pipeline = lay_out({"web": [_map("a"), _map("b"), _global("g"), _global("h"), _map("c")], "raw": []})
    assert (pipeline.segments["raw"], pipeline.after["raw"]) == (((),), (None,))
    assert [[stage.name for stage in segment] for segment in pipeline.segments["web"]] == [["a", "b"], [], ["c"]]
    assert [global_step and global_step.id for global_step in pipeline.after["web"]] == ["g", "h", None]


def test_lay_out_equal_global_stages_are_one_meeting_of_all_sources():
    pipeline = lay_out({"web": [_map("a"), _global("g")], "code": [_global("x"), _global("g")]})
    global_steps = {global_step.id: global_step.sources for global_step in pipeline.global_steps}
    assert global_steps == {"g": (("web", 0), ("code", 1)), "x": (("code", 0),)}
    assert [global_step.id for global_step in pipeline.global_steps] == ["x", "g"]


def test_lay_out_same_name_with_other_options_is_another_meeting():
    pipeline = lay_out({"web": [_global("g", "one" * 4)], "code": [_global("g", "two" * 4)]})
    assert sorted(global_step.id for global_step in pipeline.global_steps) == ["g@oneoneon", "g@twotwotw"]


def test_lay_out_conflicting_orders_are_refused():
    with pytest.raises(UserError, match="conflicting orders"):
        lay_out({"web": [_global("g"), _global("h")], "code": [_global("h"), _global("g")]})


ROOT = Path(__file__).resolve().parents[3]


def _uses(*names: str | dict[str, dict[str, object]]) -> list[StageUse]:
    return [parse_stage(name) for name in names]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("filter.gopher_quality", "normalize.unicode"),
        ("dedup.minhash", "normalize.unicode"),
        ("redact.secrets", "normalize.unicode"),
        ("filter.gopher_repetition", "filter.language"),
        ("dedup.minhash", "filter.length"),
        ("dedup.minhash", "dedup.exact"),
        ("dedup.lines", "dedup.exact"),
        ("dedup.substring", "dedup.minhash"),
        ("dedup.lines", "filter.c4_quality"),
        ("redact.pii", "dedup.exact"),
        ("decontaminate.ngram", "dedup.minhash"),
        ("redact.pii", "decontaminate.ngram"),
    ],
)
def test_order_advised_against_is_reported_with_both_stages_and_the_other_way_round_is_not(first: str, second: str) -> None:
    [warning] = order_warnings({"web": _uses(first, "my.own:Stage", second)})
    assert (warning.kind, warning.source) == ("stage_order", "web")
    assert f"source 'web': {second} stands after {first}. Put it before, because " in warning.text
    assert order_warnings({"web": _uses(second, "my.own:Stage", first)}) == []


@pytest.mark.parametrize(
    "names",
    [
        ["dedup.lines", "dedup.minhash"],  # templates of sites are cut before pages are compared
        ["filter.length", "dedup.minhash", {"filter.length": {"as": "again"}}],
        ["dedup.minhash", {"filter.length": {"mode": "tag"}}],
        ["dedup.minhash", {"filter.classifier": {"keep_share": "10%"}}],
        [{"dedup.exact": {"by": "field", "field": "url"}}, "normalize.unicode", "dedup.minhash"],
        ["dedup.minhash", "dedup.lines", "filter.length"],  # what is left of cut pages
        ["filter.url", "filter.language", "normalize.unicode", "filter.length"],
    ],
)
def test_order_with_a_purpose_is_not_reported(names: list[str | dict[str, dict[str, object]]]) -> None:
    assert order_warnings({"web": _uses(*names)}) == []


def test_order_names_aliases_and_sources_share_a_warning() -> None:
    wrong = _uses({"dedup.minhash": {"as": "near"}}, {"dedup.exact": {"as": "equal"}})
    [warning] = order_warnings({f"s{number}": wrong for number in range(5)} | {"right": wrong[::-1]})
    assert warning.text.startswith("5 sources ('s0', 's1', 's2' and 2 more): equal stands after near. ")
    assert warning.to_json()["sources"] == ["s0", "s1", "s2", "s3", "s4"]
    assert warning.to_json()["source"] is None


def test_stages_that_remove_lines_are_reported_for_conversations_alone() -> None:
    names = ["normalize.unicode", {"filter.c4_quality": {"as": "c4"}}, "dedup.exact", "dedup.lines", "redact.pii"]
    harmless = _uses("extract.chat", "normalize.unicode", "dedup.minhash", {"filter.c4_quality": {"mode": "tag"}}, "redact.pii")
    [warning] = conversation_warnings({"web": _uses(*names), "chat": _uses("extract.chat", *names), "own": harmless})
    assert (warning.kind, warning.source) == ("cut_conversations", "chat")
    assert warning.text.startswith("source 'chat': c4 and dedup.lines remove lines or repeated text")
    assert "Give the source `stages` of its own without them" in warning.text


@pytest.mark.parametrize("path", sorted((ROOT / "mixtures").glob("*.yaml")), ids=lambda path: path.stem)
def test_order_of_the_mixtures_to_copy_is_the_one_advised(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHAT", "CRAWL", "CODE", "WARC", "WET"):
        monkeypatch.setenv(name, "folder")
    mixture = load_mixture(path)
    assert order_warnings({name: mixture.stages_of(name) for name in mixture.sources}) == []


def _built(name: str, **options: object):
    return catalogue.build_stage(StageUse(name=name, alias=name, options=options, where=""))


def test_kernels_are_those_that_the_stages_and_kinds_use():
    assert {*code_of_class(type(_built("redact.secrets"))).kernels} >= {"datapipe.kernels.redact.keywords:find_keywords"}
    by_words = code_of_class(type(_built("filter.gopher_repetition", words="english"))).kernels
    assert {*by_words} >= {"datapipe.kernels.text.english_words:cut_words"}
    assert not any("secrets" in name or "fasttext" in name for name in by_words)


@pytest.mark.parametrize("share", [0.29, 0.57, 0.58])
def test_quarantine_of_exactly_the_allowed_share_is_within_the_limit(share: float) -> None:
    """100 documents, with a share whose product with 100 is below the whole number in floats."""
    number = round(100 * share)
    assert share * 100 < number
    sources = [
        {"web": SourceCounts(document_counts=DocumentCounts(read=100, quarantined=count))} for count in (0, number, number + 1)
    ]
    assert [source_over_quarantine_limit(source, share) for source in sources] == [None, None, "web"]


def test_quarantine_of_an_empty_source_is_within_the_limit() -> None:
    assert source_over_quarantine_limit({"web": SourceCounts(document_counts=DocumentCounts())}, 0.0) is None
