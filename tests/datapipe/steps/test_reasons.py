"""What `plan` prints of a run: why a step would run, after each kind of change, and what the run would write."""

import json
from pathlib import Path
from shutil import copytree

import pytest

from datapipe.config import Mixture, catalogue, load_mixture
from datapipe.engine.history import estimated, why
from datapipe.engine.run import planned
from datapipe.errors import DatapipeError, UserError
from datapipe.records import versions
from datapipe.records.names import RUN
from datapipe.steps.estimate import Estimate, step_costs
from datapipe.steps.reasons import flat, stage_changes
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.ledger_files import drop_record
from tests.support.small_disk import small_disk

pytestmark = pytest.mark.medium

STAGES = "stages:\n  - filter.length: {min_chars: 20}\n  - dedup.exact\n"
TAIL = "tokenizer: {train: {vocab_size: 300, sample_bytes: 16KiB}}\npack: {sequence_length: 64}\n"


def run_two_sources(folder: Path) -> Path:
    """The mixture of a finished run over two sources."""
    source = ""
    for number, name in enumerate(("web", "books")):
        corpora.write_jsonl(folder / name / "a.jsonl", corpora.documents(number, 30))
        corpora.write_jsonl(folder / name / "b.jsonl", corpora.documents(number + 7, 30))
        source += f"  {name}: {{path: {folder}/{name}/*.jsonl}}\n"
    file = runs.write_mixture(folder, source, STAGES, TAIL)
    runs.run_mixture(file, make_engine=runs.InProcess)
    return file


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_two_sources(tmp_path_factory.mktemp("reasons"))


@pytest.fixture
def mixture(ran: Path, tmp_path: Path) -> Path:
    """The mixture of a finished run, with a copy of its output."""
    copytree(ran.parent / "out", tmp_path / "out")
    copy = tmp_path / "mixture.yaml"
    copy.write_text(ran.read_text().replace(f"output: {ran.parent}/out", f"output: {tmp_path}/out"))
    return copy


def reasons(file: Path, *overrides: str) -> dict[str, list[str]]:
    mixture = load_mixture(file, overrides)
    request, plan = planned(mixture)
    return why(Root(mixture.output), request, plan)


def test_reasons_of_an_unchanged_mixture_are_none_and_of_a_new_output_that_all_is_new(mixture: Path, tmp_path: Path) -> None:
    assert reasons(mixture) == {}
    found = reasons(mixture, f"output={tmp_path}/elsewhere")
    assert "web/read" in found and set(map(tuple, found.values())) == {("new",)}


def test_reasons_of_another_sequence_length_are_the_option_before_and_now(mixture: Path) -> None:
    assert reasons(mixture, "pack.sequence_length=[32]") == {
        "web/pack": ["options changed: pack.sequence_length 64 → 32"],
        "books/pack": ["options changed: pack.sequence_length 64 → 32"],
    }
    assert reasons(mixture, "pack.sequence_length=[64, 32]") == {"web/pack-32": ["new"], "books/pack-32": ["new"]}


def test_reasons_of_changed_inputs_count_files_of_that_source_alone(tmp_path: Path) -> None:
    mixture = run_two_sources(tmp_path)
    (tmp_path / "web/a.jsonl").unlink()
    corpora.write_jsonl(tmp_path / "web/b.jsonl", corpora.documents(9, 31))
    for name in ("c", "d"):
        corpora.write_jsonl(tmp_path / f"web/{name}.jsonl", corpora.documents(9, 3))
    found = reasons(mixture)
    assert found["web/read"] == ["input files changed: 2 added, 1 removed, 1 changed"]
    assert "books/read" not in found
    assert found["dedup.exact/match"] == ["a step before it runs"]


def test_reasons_of_a_stage_are_its_options_that_it_is_added_or_left_out(mixture: Path) -> None:
    text = mixture.read_text()
    mixture.write_text(text.replace("min_chars: 20", "min_chars: 30"))
    assert reasons(mixture)["web/read"] == ["options changed: filter.length.min_chars 20 → 30"]
    mixture.write_text(text.replace("min_chars: 20", "min_chars: 20, min_words: 3"))
    default = catalogue.stage_class("filter.length").model_fields["min_words"].default
    assert reasons(mixture)["web/read"] == [f"options changed: filter.length.min_words {flat(default)['']} → 3"]


def test_reasons_of_changed_code_name_the_stage_or_datapipe(mixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root(load_mixture(mixture).output)
    run = json.loads(root.read_bytes(RUN))
    for stages in run["facts"]["stages"].values():
        stages["filter.length"] = ["other", "other"]
    run["facts"]["code"]["pack"] = "other"
    for step in run["steps"]:
        step["tasks"] = [f"{task[1:]}0" for task in step["tasks"]]
    root.write_atomic(RUN, json.dumps(run).encode())
    for path, _ in root.list_files("work/ledger"):
        root.delete(path)
    found = reasons(mixture)
    assert found["web/read"] == ["code of filter.length changed"]
    assert found["web/pack"] == ["a step before it runs"]


def test_reasons_of_other_versions_name_them_where_they_count(mixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = versions.version_here("pyarrow")
    monkeypatch.setattr(versions, "installed_version", lambda library: "99.0")
    versions.version_here.cache_clear()
    try:
        found = reasons(mixture)
    finally:
        versions.version_here.cache_clear()
    assert found["web/read"] == [f"versions changed: pyarrow {before} → 99.0"]


def test_reasons_of_tasks_that_were_planned_and_not_committed(mixture: Path) -> None:
    root = Root(load_mixture(mixture).output)
    run = json.loads(root.read_bytes(RUN))
    (pack,) = [step for step in run["steps"] if step["id"] == "web/pack"]
    drop_record(root, pack["tasks"][0])
    assert reasons(mixture) == {"web/pack": ["the last run did not commit it"]}


_REPETITION = "filter.gopher_repetition"
_NAMES = ["normalize.unicode", "filter.length", _REPETITION, "dedup.exact"]
_BEFORE = ["normalize.unicode", {"filter.length": {"min_chars": 20}}, _REPETITION, "dedup.exact"]


@pytest.mark.parametrize(
    ("now", "lines"),
    [
        (_BEFORE, []),
        (
            [*_BEFORE[:2], {_REPETITION: {"max_duplicate_5_grams": 0.35}}, _BEFORE[3]],
            [f"{_REPETITION}.max_duplicate_5_grams 0.15 → 0.35"],
        ),
        ([*_BEFORE[:2], {_REPETITION: {"max_duplicate_5_grams": 0.15}}, _BEFORE[3]], []),
        ([{"mine:Shouts": {"share": 0.5, "of": ["a", "b"]}}, *_BEFORE], ["added mine:Shouts {share: 0.5, of: a, b}"]),
        ([*_BEFORE, {"dedup.exact": {"as": "again"}}], ["added again (dedup.exact)"]),
        (_BEFORE[:3], ["left out dedup.exact"]),
        ([_BEFORE[1], _BEFORE[0], *_BEFORE[2:]], ["order of stages changed"]),
        ([_BEFORE[0], {"filter.url": {"as": "filter.length"}}, *_BEFORE[2:]], ["filter.length: filter.length → filter.url"]),
        (
            [_BEFORE[0], {"filter.length": {"min_chars": 20, "unknown_option": 1}}, *_BEFORE[2:]],
            ["filter.length.unknown_option not given → 1"],
        ),
        ([*_BEFORE, {"dedup.exact": 1, "of": 2}], [f"left out {name}" for name in _NAMES]),
        ([*_BEFORE, {"mine:Long": {"of": "x" * 500}}], [f"added mine:Long {{of: {'x' * 76}…}}"]),
    ],
)
def test_changes_of_stages_are_reported_by_their_names_in_the_run(now: list[object], lines: list[str]) -> None:
    before, after = ({"sources": {"web": {}, "books": {}}, "stages": stages} for stages in (_BEFORE, now))
    assert stage_changes(before, after) == lines


def test_changes_of_a_url_are_reported_without_asking_its_server() -> None:
    urls = ("http://127.0.0.1:1/a.bin", "http://127.0.0.1:1/b.bin")
    before, after = ({"sources": {"web": {}}, "stages": [{"filter.language": {"model": url, "keep": ["en"]}}]} for url in urls)
    assert stage_changes(before, after) == [f"filter.language.model {urls[0]} → {urls[1]}"]


def test_changes_of_the_stages_of_some_sources_name_these() -> None:
    sources = {name: {"stages": None} for name in "abcde"}
    before = {"sources": sources, "stages": ["dedup.exact"]}
    own = {"stages": ["dedup.exact", "normalize.unicode"]}
    assert stage_changes(before, before | {"sources": sources | {"a": own}}) == ["added normalize.unicode (of a)"]
    many = dict.fromkeys("abcd", own)
    assert stage_changes(before, before | {"sources": sources | many}) == ["added normalize.unicode (of a, b, c and 1 more)"]
    assert stage_changes(before, before | {"sources": dict.fromkeys("abcde", own)}) == ["added normalize.unicode"]


TOKENS = "tokenizer: {train: {vocab_size: 400, sample_bytes: 8KiB}}\npack: {sequence_length: 128}\n"
DOCUMENTS = "tokenizer: none\n"
FILTERED = "stages: [filter.length: {min_chars: 900}]\n"
COMPARED = "stages: [dedup.minhash]\n"


UNCHECKED = ["execution.check_disk=false", "stages.filter.length.min_chars=1000000"]


def written(folder: Path, stages: str, tail: str, num_documents: int = 2_000) -> Mixture:
    """A mixture over a corpus of about 1.5 MB."""
    corpora.write_jsonl(folder / "web.jsonl", corpora.documents(1, num_documents))
    return load_mixture(runs.write_mixture(folder, f"  web: {{path: {folder}/web.jsonl}}\n", stages, tail))


def estimate_of(mixture: Mixture, limit: int | None = None) -> Estimate:
    return estimated(Root(mixture.output), *planned(mixture, limit))


def bytes_written(mixture: Mixture) -> int:
    """Bytes of everything that the committed tasks of a mixture wrote."""
    _, plan = planned(mixture)
    records = [record for step in plan.steps for record in step.records]
    return sum(file.bytes for record in records for files in record.outputs.values() for file in files)


@pytest.mark.slow
@pytest.mark.parametrize("tail", [TOKENS, DOCUMENTS], ids=["tokens", "documents"])
@pytest.mark.parametrize("stages", ["", COMPARED], ids=["read", "compare"])
def test_estimated_bytes_are_those_of_the_run_within_a_factor_of_two(tmp_path: Path, stages: str, tail: str) -> None:
    mixture = written(tmp_path, stages, tail)
    before = estimate_of(mixture)
    assert before.core_seconds > 0 and before.unknown == ()
    runs.run_mixture(tmp_path / "mixture.yaml", make_engine=runs.InProcess)
    assert 0.5 < bytes_written(mixture) / before.bytes < 2
    assert estimate_of(mixture) == Estimate(bytes=0, core_seconds=0, unknown=(), is_all_kept=False)


@pytest.mark.slow
def test_estimates_go_by_what_the_last_run_kept(tmp_path: Path) -> None:
    mixture = written(tmp_path, FILTERED, TOKENS)
    first = estimate_of(mixture)
    assert first.is_all_kept
    assert first.start_seconds > 4  # else `plan` says 1 s of a run of 8 s
    result = runs.run_mixture(tmp_path / "mixture.yaml", make_engine=runs.InProcess)
    total = result.report["total"]
    share = total["kept_bytes"] / total["bytes"]
    assert 0.1 < share < 0.9
    again = estimate_of(load_mixture(tmp_path / "mixture.yaml", ["seed=9"]))
    assert not again.is_all_kept
    assert again.bytes == pytest.approx(first.bytes * share, rel=0.02)


def test_a_limited_run_is_estimated_by_its_documents(tmp_path: Path) -> None:
    mixture = written(tmp_path, "", TOKENS)
    assert estimate_of(mixture, limit=10).bytes < estimate_of(mixture).bytes / 10
    assert estimate_of(mixture, limit=10**6).bytes == estimate_of(mixture).bytes


def test_times_of_steps_are_those_of_the_estimate_and_the_exchanges_have_some(tmp_path: Path) -> None:
    mixture = written(tmp_path, COMPARED, TOKENS, 200)
    request, plan = planned(mixture)
    times = step_costs(request, plan, {})
    assert sum(time.seconds for time in times.values()) == pytest.approx(estimate_of(mixture).core_seconds)
    assert all(time.seconds > 0 and not time.unknown for time in times.values())
    assert list(times) == [step.id for step in plan.steps]


def test_stages_of_unknown_speed_are_named(tmp_path: Path) -> None:
    mixture = written(
        tmp_path, "stages: ['tests.support.function_stages:keeps_words', filter.length: {min_chars: 1}]\n", TOKENS, 20
    )
    assert estimate_of(mixture).unknown == ("tests.support.function_stages:keeps_words",)
    times = step_costs(*planned(mixture), {})
    assert [name for name, time in times.items() if time.unknown] == ["web/read"]


@pytest.mark.slow
def test_a_disk_that_is_too_small_refuses_the_run_and_explains_how_to_go_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20):
        mixture = written(tmp_path, FILTERED, TOKENS)
        output = tmp_path / "disk/run"
        with pytest.raises(
            UserError, match=r"has .* free, and the run would write about .* if it keeps all documents"
        ) as error:
            runs.run_mixture(tmp_path / "mixture.yaml", output=output, make_engine=runs.InProcess)
        assert "execution.check_disk: false" in str(error.value) and "--limit" in str(error.value)
        assert not list((tmp_path / "disk" / "run").glob("shards/*"))
        tiny = runs.run_mixture(tmp_path / "mixture.yaml", output=output, limit=20, make_engine=runs.InProcess)
        assert tiny.report["total"]["documents"]["read"] == 20
        with pytest.raises(DatapipeError) as error:  # the disk is full before it ends, or it ends
            runs.run_mixture(tmp_path / "mixture.yaml", output=output, overrides=UNCHECKED, make_engine=runs.InProcess)
        assert "check_disk" not in str(error.value)
    assert mixture.execution.check_disk
