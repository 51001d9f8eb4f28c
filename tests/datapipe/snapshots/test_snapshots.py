"""Real runs that take the rows of other outputs: what is drawn of them, that nothing is made again, and what is refused."""

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from datapipe.config import load_mixture
from datapipe.engine.run import Run
from datapipe.engine.run_report import run_and_report
from datapipe.errors import CorruptionError, DatapipeError, UserError
from datapipe.loader import Loader
from datapipe.loader.trace import open_run
from datapipe.report.card.write import card_maker
from datapipe.shards.manifest import Snapshot, read_snapshot, read_tokens
from datapipe.shards.snapshots import DATA_PATH
from datapipe.snapshots.export.text import parts_of_text
from datapipe.snapshots.snapshot_sources import copy_shards, taken_files, taken_shards
from datapipe.snapshots.verify import verify_snapshot
from datapipe.steps.request import TakenSource
from datapipe.steps.weighting import epoch_tokens
from datapipe.storage.root import Root
from tests.support import corpora
from tests.support.object_store import object_store
from tests.support.runs import InProcess, Watcher
from tests.support.snapshots import make_growing_snapshots, make_snapshot, source_path, upload

pytestmark = pytest.mark.medium

LENGTH = 64


def mixture_of(folder: Path, name: str, sources: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    data = {"name": name, "output": str(folder / name), "sources": dict(sources), "pack": {"sequence_length": LENGTH}}
    return data | {"execution": {"check_disk": False}} | sections


def build(data: Mapping[str, Any]) -> Snapshot:
    run = Run(load_mixture(data), Watcher(), make_engine=InProcess)
    snapshot = run.execute()
    assert snapshot.has_tokens
    return snapshot


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an output `old` with two sources and a validation split, and of new text."""
    folder = tmp_path_factory.mktemp("earlier")
    for seed, (name, count) in enumerate({"web": 120, "code": 40, "new": 60}.items()):
        rng = random.Random(seed)
        rows = [{"id": f"{name}-{number}", "text": corpora.prose(rng, 60)} for number in range(count)]
        corpora.write_jsonl(folder / f"{name}.jsonl", rows)
    sources = {
        "web": {"path": str(folder / "web.jsonl"), "weight": 3, "license": "MIT"},
        "code": {"path": str(folder / "code.jsonl"), "license": "Apache-2.0", "synthetic": {"model": "a-model"}},
    }
    build(mixture_of(folder, "old", sources, validation=0.1, tokenizer={"train": {"vocab_size": 400}}))
    return folder


@pytest.fixture(scope="module")
def new(earlier: Path) -> dict[str, Any]:
    return {"path": str(earlier / "new.jsonl"), "weight": 0.9}


@pytest.fixture(scope="module")
def mixed(earlier: Path, new: dict[str, Any]) -> Run:
    """A run of new text and the rows of `old`, in the folder `mixed`; no test changes it."""
    sources = {"new": new, "old": {"snapshot": str(earlier / "old"), "weight": 0.1}}
    run = Run(load_mixture(mixture_of(earlier, "mixed", sources)), Watcher(), make_engine=InProcess)
    run_and_report(run).raise_problem()
    return run


def epoch_rows(output: Path | str, source: str, rows: int) -> Counter[bytes]:
    """The tokens and document keys of the first rows that are drawn of a source."""
    loader = Loader(output, global_batch_size=1, fields=("input_ids", "sources", "document_keys"))
    with closing(loader):
        number, found = sorted(read_snapshot(Root(str(output))).sources).index(source), Counter[bytes]()
        while found.total() < rows:
            batch = next(loader)
            if batch["sources"][0] == number:
                found[batch["input_ids"].tobytes() + batch["document_keys"].tobytes()] += 1
    return found


def num_rows(snapshot: Snapshot, source: str) -> int:
    return sum(shard.sequences for shard in snapshot.shards_of(source, "train"))


def test_rows_are_those_of_the_other_output_and_each_is_drawn_before_any_is_drawn_again(earlier: Path, mixed: Run) -> None:
    old, made = read_snapshot(Root(str(earlier / "old"))), mixed.snapshot
    assert made.has_tokens
    assert list(made.sources) == ["new", "old.web", "old.code"]
    for name in ("web", "code"):
        rows = num_rows(old, name)
        assert num_rows(made, f"old.{name}") == rows
        taken = epoch_rows(earlier / "mixed", f"old.{name}", rows)
        assert taken == epoch_rows(earlier / "old", name, rows)
        assert set(taken.values()) == {1}
    assert verify_snapshot(Root(str(earlier / "mixed")), made) == []
    assert made.tokenizer.fingerprint == old.tokenizer.fingerprint
    assert made.sources["old.code"].synthetic == old.sources["code"].synthetic
    assert {made.sources[f"old.{name}"].license for name in ("web", "code")} == {"MIT", "Apache-2.0"}
    tokens = epoch_tokens(old.sources, old.shards, LENGTH)
    [phase] = made.phases
    assert Fraction(phase.weights["new"], sum(phase.weights.values())) == Fraction(9, 10)
    assert Fraction(phase.weights["old.web"], phase.weights["old.code"]) == Fraction(tokens["web"], tokens["code"])


def test_run_that_changes_nothing_leaves_the_report_and_writes_what_is_gone(earlier: Path, tmp_path: Path) -> None:
    data, files = mixture_of(tmp_path, "a", {"old": {"snapshot": str(earlier / "old")}}), ("report.json", "report.html")

    def contents() -> list[bytes]:
        run_and_report(Run(load_mixture(data), Watcher(), make_engine=InProcess)).raise_problem()
        return [(tmp_path / "a" / name).read_bytes() for name in (*files, "README.md")]

    contents()
    second = contents()  # whose report has no snapshot that was the newest before, or the time of another run
    assert contents() == second
    for name in ("report.html", "README.md"):
        (tmp_path / "a" / name).unlink()
    assert contents()[2] == second[2]


def test_report_and_card_report_what_was_taken_and_no_task_makes_it_again(earlier: Path, tmp_path: Path) -> None:
    data, watcher = mixture_of(tmp_path, "a", {"old": {"snapshot": str(earlier / "old")}}), Watcher()
    run_and_report(Run(load_mixture(data), watcher, make_engine=InProcess)).raise_problem()
    assert watcher.steps == ["tokenizer/load"]
    for shard in read_snapshot(Root(str(tmp_path / "a"))).shards:
        there = earlier / "old" / "shards" / shard.source.removeprefix("old.") / shard.path.rpartition("/")[2]
        assert os.path.samefile(tmp_path / "a" / shard.path, there)
    report = json.loads((tmp_path / "a" / "report.json").read_bytes())
    old, taken, provenance = read_snapshot(Root(str(earlier / "old"))), report["taken"], report["provenance"]
    for name in ("web", "code"):
        shards = [shard for shard in old.shards if shard.source == name]
        assert taken[f"old.{name}"]["tokens"] == sum(shard.tokens for shard in shards)
        assert taken[f"old.{name}"]["documents"] == sum(shard.documents for shard in shards)
    assert provenance["synthetic"]["synthetic"]["tokens"] == taken["old.code"]["tokens"]
    assert provenance["licenses"]["MIT"]["tokens"] == taken["old.web"]["tokens"]
    assert f"| `old.web` | {taken['old.web']['documents']:,} |" in (tmp_path / "a" / "README.md").read_text()
    croissant = json.loads((tmp_path / "a" / "croissant.json").read_bytes())
    assert [entity["name"] for entity in croissant["prov:wasDerivedFrom"]] == ["old.web", "old.code"]


def test_a_replay_has_its_share_in_every_phase_and_draws_as_the_earlier_run_did(earlier, tmp_path, new):
    phases = [
        {"until": "50%", "weights": {"new": 1}},
        {"until": "100%", "weights": {"new": 2, "more": 2}, "schedule": "linear"},
    ]
    mixing = {"tokens": 200_000, "phases": phases, "replay": {"from": str(earlier / "old"), "share": "20%"}}
    more = {"snapshot": str(earlier / "old"), "sources": ["code"]}
    made = build(mixture_of(tmp_path, "a", {"new": new, "more": more}, mixture=mixing))
    assert list(made.sources) == ["new", "more", "replay.web", "replay.code"]
    assert len(made.phases) == 65
    for phase in made.phases:
        total = sum(phase.weights.values())
        assert Fraction(phase.weights["replay.web"], total) == Fraction(15, 100)
        assert Fraction(phase.weights["replay.code"], total) == Fraction(5, 100)
    last = made.phases[-1].weights
    assert Fraction(last["more"], last["new"] + last["more"]) == Fraction(127, 256)  # the middle of the last stair
    rows = num_rows(made, "replay.web")
    assert set(epoch_rows(tmp_path / "a", "replay.web", rows).values()) == {1}
    run = open_run(tmp_path / "a", global_batch_size=4)
    for name in ("more", "replay.code"):  # a document is traced to every source that has its rows
        traced = run.find_document(f"{name}/code.jsonl:0")
        assert {appearance.source for appearance in traced.appearances} == {"more", "replay.code"}


def test_computed_weights_count_the_rows_that_were_taken(earlier: Path, tmp_path: Path) -> None:
    weighting = {"weighting": "temperature", "temperature": 1}
    made = build(mixture_of(tmp_path, "a", {"old": {"snapshot": str(earlier / "old")}}, mixture=weighting))
    tokens, [phase] = epoch_tokens(made.sources, made.shards, LENGTH), made.phases
    assert phase.weights.keys() == tokens.keys() == {"old.web", "old.code"}
    share = phase.weights["old.web"] / sum(phase.weights.values())
    assert share == pytest.approx(tokens["old.web"] / sum(tokens.values()), rel=1e-9)


def test_the_mixture_that_an_output_keeps_names_the_snapshot_and_gives_the_same_bytes_later(earlier, tmp_path, new):
    other = tmp_path / "old"
    shutil.copytree(earlier / "old", other)
    replay = {"replay": {"from": str(other), "share": "5%"}}
    made = build(mixture_of(tmp_path, "a", {"new": new, "old": {"snapshot": str(other)}}, mixture=replay))
    sources = {"web": {"path": str(earlier / "web.jsonl")}, "code": {"path": str(earlier / "code.jsonl"), "weight": 4}}
    tokenizer = {"path": str(other / "tokenizer.json")}
    newest = build(mixture_of(tmp_path, "old", sources, tokenizer=tokenizer))
    assert newest.fingerprint == read_snapshot(Root(str(other))).fingerprint
    kept = load_mixture(tmp_path / "a" / "mixture.yaml", output=tmp_path / "again")
    assert kept.mixture.replay is None
    again = Run(kept, Watcher(), make_engine=InProcess).execute()
    assert again.fingerprint == made.fingerprint
    today = build(mixture_of(tmp_path, "b", {"new": new, "old": {"snapshot": str(other)}}, mixture=replay))
    assert today.fingerprint != made.fingerprint


def test_an_output_is_whole_without_the_one_that_it_was_made_from(earlier: Path, tmp_path: Path, new: dict[str, Any]) -> None:
    other = tmp_path / "old"
    shutil.copytree(earlier / "old", other)
    data = mixture_of(tmp_path, "a", {"new": new, "old": {"snapshot": str(other)}})
    made = build(data)
    path = tmp_path / "a" / made.shards_of("old.web", "train")[0].path
    path.unlink()
    assert build(data).fingerprint == made.fingerprint  # a run that was stopped while it published is completed
    assert path.exists()
    shutil.rmtree(other)
    assert verify_snapshot(Root(str(tmp_path / "a")), made) == []
    assert epoch_rows(tmp_path / "a", "old.web", 10).total() == 10


def test_snapshots_of_snapshots_and_of_several_lengths(earlier: Path, tmp_path: Path) -> None:
    def again(name: str, output: str) -> str:
        kept = load_mixture(tmp_path / name / "mixture.yaml", output=tmp_path / output)
        return Run(kept, Watcher(), make_engine=InProcess).execute().fingerprint

    sources = {"web": {"path": str(earlier / "web.jsonl")}}
    lengths = {"sequence_length": [LENGTH, 128]}
    build(mixture_of(tmp_path, "two", sources, pack=lengths, tokenizer={"path": str(earlier / "old" / "tokenizer.json")}))
    build(mixture_of(tmp_path, "a", {"x": {"snapshot": str(tmp_path / "two")}}, pack=lengths))
    made = build(mixture_of(tmp_path, "b", {"y": {"snapshot": str(tmp_path / "a"), "sources": ["x.web"]}}, pack=lengths))
    assert list(made.sources) == ["y"]
    for length in (LENGTH, 128):
        first, last = (read_tokens(Root(str(tmp_path / name)), None, length) for name in ("two", "b"))
        assert [shard.checksum for shard in first.shards] == [shard.checksum for shard in last.shards]
    longer = build(mixture_of(tmp_path, "d", {"y": {"snapshot": str(tmp_path / "two")}}, pack={"sequence_length": 128}))
    assert longer.sequence_length == 128
    assert [again("b", "c"), again("d", "e")] == [made.fingerprint, longer.fingerprint]


def test_texts_and_cards_that_another_output_has_are_refused_and_not_left_out(earlier: Path, mixed: Run) -> None:
    root = Root(str(earlier / "mixed"))
    made = read_snapshot(root)
    with pytest.raises(UserError, match=r"old\.code, old\.web: .* --source new"):
        parts_of_text(root, made, None, None)
    [part] = parts_of_text(root, made, "new", None)
    assert sum(len(rows) for rows in part.batches()) == 60
    with pytest.raises(UserError, match="--card"):
        card_maker(root, made, "here", "old.web")


_Change = Callable[[dict[str, Any], Path], Any]


def _tokenizer(data: dict[str, Any], folder: Path) -> str:
    """The output of a run with a tokenizer of its own."""
    build(mixture_of(folder, "other", {"new": data["sources"]["new"]}, tokenizer={"train": {"vocab_size": 300}}))
    return str(folder / "other")


def _replay(**options: Any) -> _Change:
    return lambda data, folder: data.update(mixture={"replay": {"from": "y", "share": "5%"}, **options})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data, folder: data.update(pack={"sequence_length": 32}), "pack.sequence_length is 32"),
        (lambda data, folder: data.update(shards={"format": "parquet"}), "shards.format is parquet"),
        (lambda data, folder: data.update(pack={"sequence_length": 64, "method": "buckets"}), "pack.method is buckets"),
        (lambda data, folder: data["sources"]["old"].update(sources=["wep"]), "Did you mean 'web'"),
        (lambda data, folder: data["sources"]["old"].update(version="00"), "no snapshot begins with '00'"),
        (lambda data, folder: data["sources"]["old"].update(snapshot=str(folder / "none")), r"no snapshot\.json here"),
        (lambda data, folder: data["sources"].update({"old.web": data["sources"]["new"]}), "'old.web', which is a source"),
        (lambda data, folder: data.update(licenses=["Apache-2.0", "unknown"]), "has the licence MIT"),
        (lambda data, folder: data.update(mixture={"max_synthetic": "1%"}), "1.00%"),
        (lambda data, folder: data.update(tokenizer="none"), "needs a tokenizer"),
        (lambda data, folder: data.update(tokenizer={"train": {"vocab_size": 400}}), "Leave the tokenizer out"),
        (
            lambda data, folder: data.update(tokenizer={"path": f"{_tokenizer(data, folder)}/tokenizer.json"}),
            "is not the tokenizer",
        ),
        (lambda data, folder: data["sources"].update(other={"snapshot": _tokenizer(data, folder)}), "has another tokenizer"),
        (lambda data, folder: build(data) and data["sources"]["old"].update(snapshot=data["output"]), "this mixture itself"),
        (lambda data, folder: data["sources"]["old"].update(path="*.jsonl"), "Expected one of: snapshot"),
        (_replay(replay={"from": "y", "share": "100%"}), r"share: .*more than 0%"),
        (_replay(weighting="temperature", temperature=2), "weighting: temperature"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_anything_runs(earlier, tmp_path, new, change, problem):
    data = mixture_of(tmp_path, "a", {"new": new, "old": {"snapshot": str(earlier / "old")}})
    change(data, tmp_path)
    with pytest.raises(DatapipeError, match=problem):
        build(data)


# ------------------------------------------------------------------------------------------------ copies of shards


def taken(root: Root, source: str = "web") -> dict[str, TakenSource]:
    snapshot = read_snapshot(root)
    return {"old": TakenSource(root=root, snapshot=snapshot, source=source)}


def test_parts_of_a_source_that_grew_become_one_and_keep_names_of_their_own(tmp_path: Path) -> None:
    make_growing_snapshots(tmp_path / "grown", {"web": [20, 8, 9], "code": [5]})
    shards = taken_shards(taken(Root(str(tmp_path / "grown"))), 16, "", seed=17)
    assert sum(shard.entry.sequences for shard in shards) == 37
    assert {shard.entry.path.rpartition("/")[0] for shard in shards} == {"shards/old", "shards/old+1", "shards/old+2"}
    assert len({shard.entry.numbered_path for shard in shards}) == len(shards)
    assert DATA_PATH.fullmatch("shards/old.web+2/part-00000-00000-0123456789abcdef.arrow")  # so that cleaning knows them
    assert {(shard.entry.source, shard.entry.part) for shard in shards} == {("old", None)}


def test_ranges_of_hashes_count_under_their_own_seed_alone(tmp_path: Path) -> None:
    root = Root(str(make_snapshot(tmp_path, {"web": 10})))
    there = read_snapshot(root)
    hashed = there.model_copy(update={"shards": tuple(s.model_copy(update={"hashes": (0, 1 << 64)}) for s in there.shards)})
    source = {"old": TakenSource(root=root, snapshot=hashed, source="web")}
    assert {shard.entry.hashes for shard in taken_shards(source, 16, "", seed=17)} == {(0, 1 << 64)}
    assert {shard.entry.hashes for shard in taken_shards(source, 16, "", seed=18)} == {None}


def test_the_files_behind_the_documents_have_the_hashes_that_their_keys_begin_with(tmp_path: Path) -> None:
    root = Root(str(make_snapshot(tmp_path, {"web": 10, "code": 3})))
    [(number, name, path)] = taken_files(taken(root))
    assert (name, path) == ("old", source_path("web"))
    with closing(Loader(root.url, global_batch_size=10, fields=("document_keys",), mixture={"web": 1})) as loader:
        assert number in {int.from_bytes(key[:8].tobytes(), "big") for key in next(loader)["document_keys"]}


def test_on_one_disk_shards_are_links_and_those_that_are_there_stay(tmp_path: Path) -> None:
    there, here = Root(str(make_snapshot(tmp_path / "a", {"web": 20}))), Root(str(tmp_path / "b"))
    shards = taken_shards(taken(there), 16, "", seed=17)
    copy_shards(here, shards, "staging")
    times = [os.stat(here.path(shard.entry.path)).st_ino for shard in shards]
    assert times == [os.stat(there.path(shard.path)).st_ino for shard in shards]
    copy_shards(here, shards, "staging")
    assert [path for path, _ in here.list_files("")] == sorted(shard.entry.path for shard in shards)


@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
def test_a_shard_that_is_not_as_in_its_manifest_is_reported(tmp_path: Path, damage: str) -> None:
    there = Root(str(make_snapshot(tmp_path / "a", {"web": 20})))
    shards = taken_shards(taken(there), 16, "", seed=17)
    path = Path(there.path(shards[1].path))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    if damage != "gone":
        path.write_bytes(content if damage == "changed" else content[:-8])
    with pytest.raises(CorruptionError, match=path.name):
        copy_shards(Root(str(tmp_path / "b")), shards, "staging")
    assert not (tmp_path / "b" / shards[1].entry.path).exists()


@pytest.mark.medium
def test_shards_go_between_a_disk_and_stores(tmp_path: Path) -> None:
    folder = make_snapshot(tmp_path / "a", {"web": 20})
    wanted = {
        shard.entry.path: (folder / shard.path).read_bytes() for shard in taken_shards(taken(Root(str(folder))), 16, "", 17)
    }
    with object_store("bucket") as query:
        on_store = Root(upload(folder, f"s3://bucket/a{query}"))
        outputs = {
            f"s3://bucket/from-disk{query}": Root(str(folder)),
            f"s3://bucket/from-store{query}": on_store,
            str(tmp_path / "from-store"): on_store,
        }
        for url, there in outputs.items():
            copy_shards(Root(url), taken_shards(taken(there), 16, "", 17), "staging")
            found = {path: Root(url).read_bytes(path) for path, _ in Root(url).list_files("")}
            assert found == wanted


def test_a_long_copy_reports_how_far_it_is(tmp_path: Path) -> None:
    there, told = Root(str(make_snapshot(tmp_path / "a", {"web": 20}))), list[str]()
    shards = taken_shards(taken(there), 16, "", seed=17)
    copy_shards(Root(str(tmp_path / "b")), shards, "staging", told.append, iter(range(0, 6000, 60)).__next__)
    assert [f"{number} of {len(shards)}" in line for number, line in enumerate(told)] == [True] * len(shards)
