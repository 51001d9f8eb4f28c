"""The shards of a manifest as columns; absurd content of others is refused in one sentence."""

import copy
import gc
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from datapipe.errors import DatapipeError, SnapshotError
from datapipe.explore.documents import Inspector
from datapipe.loader import Loader
from datapipe.loader.order.sample_order import Inventory
from datapipe.loader.remote.protocol import OpenRequest
from datapipe.records.checksum import bytes_checksum
from datapipe.records.names import SNAPSHOT
from datapipe.service.outputs import ServedOutput
from datapipe.shards.manifest import FurtherLength, Phase, Snapshot, TokenizerEntry, read_snapshot
from datapipe.shards.shard_table import SCHEMA, CellRun, ShardEntry, ShardTable, numbered_path
from datapipe.shards.source_entry import SourceEntry, Strata
from datapipe.storage.root import Root
from tests.support import packed_shards
from tests.support.command_line import datapipe
from tests.support.snapshots import make_cells, make_growing_snapshots, write_manifest

pytestmark = pytest.mark.medium


def entry(number: int, source: str = "web", **options: Any) -> ShardEntry:
    digest = f"{number * 0x9E3779B97F4A7C15 % (1 << 64):016x}"
    counts = {"sequences": 10 + number, "tokens": 1000 + number, "documents": number, "bytes": 4000}
    names = {"path": f"shards/{source}/part-{number:05d}-00000-{digest}.arrow", "source": source, "split": "train"}
    return ShardEntry(**{**names, **counts, "checksum": f"xxh3_128:{digest * 2}", **options})


MIXED = (
    entry(3, hashes=(0, 1 << 63)),
    entry(1, hashes=(1 << 63, 1 << 64), stratum=2),
    entry(2, "é 世", piece_length=8),
    entry(4, split="validation"),
    entry(0, "a b", stratum=0, piece_length=1, hashes=(7, 7)),
)


def manifest(shards: tuple[ShardEntry, ...]) -> dict[str, Any]:
    """The content of a manifest of the version before, without its fingerprint: it has the shards itself."""
    names = sorted({shard.source for shard in shards})
    snapshot = Snapshot(
        name="mixed",
        seed=1,
        sequence_length=16,
        shard_format="arrow",
        tokenizer=TokenizerEntry(path="tokenizer.json", fingerprint="xxh3_128:t", vocab_size=1000, eos_id=0),
        sources={name: SourceEntry(weight=1) for name in names},
        phases=(Phase(until_tokens=None, weights=dict.fromkeys(names, 1)),),
        shards=shards,
    )
    content = snapshot.model_dump(mode="json", exclude={"lists", "fingerprint"})
    return {**content, "version": 2, "shards": [shard.model_dump(mode="json") for shard in shards]}


def write(folder: Path, content: dict[str, Any], indent: int | None = 1) -> None:
    """A sealed manifest: with `indent` 1 in the layout that runs write, with None in another."""
    sealed = xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, ensure_ascii=False).encode())
    folder.mkdir(exist_ok=True)
    (folder / SNAPSHOT).write_text(json.dumps({**content, "fingerprint": sealed}, indent=indent, ensure_ascii=False) + "\n")


def outcome(folder: Path, content: dict[str, Any], indent: int | None = 1) -> Snapshot | str:
    write(folder, content, indent)
    try:
        return read_snapshot(Root(str(folder)))
    except SnapshotError as error:
        return str(error)


@pytest.mark.parametrize("shards", [MIXED, MIXED[:1], tuple(entry(number) for number in range(1_000))], ids=len)
def test_table_is_the_sequence_of_its_entries(shards: tuple[ShardEntry, ...]) -> None:
    table = ShardTable.of(shards)
    assert (len(table), tuple(table)) == (len(shards), shards)
    assert table == shards and shards == table and table == ShardTable.of(table)
    assert table != shards[1:] and table != (*shards[:-1], shards[0].model_copy(update={"bytes": 1}))
    assert (table[0], table[-1], table[1:3]) == (shards[0], shards[-1], shards[1:3])
    with pytest.raises(IndexError):
        table[len(shards)]
    assert table.sequences.tolist() == [shard.sequences for shard in shards]
    assert table.strata.tolist() == [-1 if shard.stratum is None else shard.stratum for shard in shards]
    assert table.numbered_paths.to_pylist() == [numbered_path(shard.path) for shard in shards]
    assert pickle.loads(pickle.dumps(table)) == table


def test_table_is_sorted_selected_and_searched_as_its_entries() -> None:
    shards = [entry(number, source) for number in range(50) for source in ("b", "a", "é", "Z", "a b")]
    random.Random(3).shuffle(shards)
    table = ShardTable.of([*shards, MIXED[3]])
    expected = sorted(shards, key=lambda shard: (shard.source, shard.numbered_path))
    ordered = table.in_order("train")
    assert tuple(ordered) == tuple(expected)
    assert ordered[2] == list(ordered)[2]
    assert tuple(table.in_order("validation")) == tuple(table.of_source("web", "validation")) == (MIXED[3],)
    for source in ("a b", "é"):
        assert tuple(table.of_source(source, "train")) == tuple(shard for shard in expected if shard.source == source)
    assert tuple(table.of_source("a b", "validation")) == tuple(table.of_source("unknown", "train")) == ()
    table = ShardTable.of(MIXED)
    assert table.named([]) == []
    wanted = {MIXED[2].path, MIXED[1].numbered_path, MIXED[4].path, "shards/web/unknown.arrow"}
    assert sorted(table.named(wanted)) == [(1, MIXED[1].numbered_path), (2, MIXED[2].path), (4, MIXED[4].path)]


def test_manifest_reads_and_writes_every_entry_in_any_layout(tmp_path: Path) -> None:
    content = manifest(MIXED)
    snapshot, other = outcome(tmp_path, content), outcome(tmp_path, content, None)
    assert isinstance(snapshot, Snapshot) and isinstance(other, Snapshot)
    assert snapshot == other and tuple(snapshot.shards) == MIXED
    newer = snapshot.sealed()
    write_manifest(Root(str(tmp_path)), newer)
    assert read_snapshot(Root(str(tmp_path))) == newer and tuple(newer.shards) == MIXED
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot


VALUES = (
    *(None, True, -1, 0, 1.0, 1.5, 1e3, 1 << 62, 1 << 64, 1 << 70, {}, {"a": 1}),
    *("", "5", "x\ny", 'x"y', "é", "a\\b", "..", "a/../b", "/a", "validation"),
    *([], [1], [1, 2], [1, 2, 3], [1, None], ["1", "2"], [-1, 2], [0, 1 << 64], [0, 1 << 65], [1.0, 2]),
)


@pytest.mark.parametrize("field", [*ShardEntry.model_fields, "another"])
def test_manifest_with_any_value_in_an_entry_is_read_or_refused(tmp_path: Path, field: str) -> None:
    for value in VALUES:
        content = manifest(MIXED)
        content["shards"][1][field] = value
        found = outcome(tmp_path, content)
        assert not isinstance(found, Snapshot) or found.shards[1] == ShardEntry(**content["shards"][1]), value


def _rename(content: dict[str, Any], name: str) -> None:
    content["sources"][name] = content["sources"].pop("web")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content["shards"].append(None), ""),
        (lambda content: content["shards"].append([]), ""),
        (lambda content: content["shards"].clear(), None),
        (lambda content: [shard.pop("split") for shard in content["shards"]], ""),
        (lambda content: content.update(shards=None), ""),
        (lambda content: content.update(shards={"a": 1}), ""),
        (lambda content: content.update(also=[1, 2]), ""),
        (lambda content: content["sources"].pop("web"), "shards of 'web', which is not a source"),
        (lambda content: content["sources"].update(shards=[]), ""),
        (lambda content: content["phases"].append({"until_tokens": None, "weights": {"shards": []}}), ""),
        (lambda content: content.update(version=4), "version"),
        (lambda content: content["tokenizer"].update(path="a/../../t.json"), "does not lie inside"),
        (lambda content: content["shards"][0].update(path="../../etc/passwd"), "does not lie inside"),
        (lambda content: content["shards"][0].update(path="/etc/passwd"), "does not lie inside"),
        (lambda content: _rename(content, "../../evil"), "does not lie inside"),
        (lambda content: _rename(content, "a/b"), "not a source name"),
        (lambda content: content["shards"].append(content["shards"][0]), "listed twice"),
    ],
)
def test_manifest_with_another_shape_is_read_or_refused(tmp_path, change, reason):
    content = manifest(MIXED)
    change(content)
    found = outcome(tmp_path, content)
    assert isinstance(found, Snapshot) if reason is None else isinstance(found, str) and reason in found


def test_manifest_with_damaged_bytes_is_refused_or_reports_the_same(tmp_path: Path) -> None:
    write(tmp_path, manifest(MIXED))
    sound = (tmp_path / SNAPSHOT).read_bytes()
    expected, draw = read_snapshot(Root(str(tmp_path))), random.Random(7)
    others = [b"", *(bytes([byte]) for byte in b'0a"\\,{}[] \n\x00\xff'), b"},\n  {", b"\\u0041", b'\n "shards": [\n', b"\n ]"]
    for _ in range(120):
        damaged, at = bytearray(sound), draw.randrange(len(sound))
        damaged[at : at + draw.choice([0, 1, 2, 40])] = draw.choice(others)
        (tmp_path / SNAPSHOT).write_bytes(bytes(damaged))
        try:
            assert read_snapshot(Root(str(tmp_path))) == expected
        except SnapshotError:
            continue


def test_snapshot_that_grew_has_the_lists_of_the_one_before_and_one_more(tmp_path: Path) -> None:
    root, names = Root(str(tmp_path)), make_growing_snapshots(tmp_path, {"a": [20, 10], "b": [15]})
    first, second = (read_snapshot(root, name) for name in names)
    assert (len(first.lists), second.lists[:1], len(second.lists)) == (1, first.lists, 2)
    assert second.shards[: len(first.shards)] == tuple(first.shards)


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("path", ["../../etc/passwd"] * 2, "does not lie inside"),
        ("path", ["shards/web/a.arrow"] * 2, "listed twice"),
        ("path", [None, "a"], "without path"),
        ("source", ["b", "web"], "'b', which is not a source"),
        ("split", ["test", "train"], "neither train nor validation"),
        ("checksum", ["a" * 5000, "b"], "checksum that is out of range"),
        ("tokens", [-1, 1], "tokens that is out of range"),
        ("part", [1 << 62, None], "part that is out of range"),
        ("hashes", [[1], None], "no pair"),
        ("hashes", [[0, (1 << 64) + 1], None], "hashes that is out of range"),
        ("another", [1, 2], "columns"),
    ],
)
def test_list_with_values_that_no_run_writes_is_refused(tmp_path: Path, name: str, values: list[Any], reason: str) -> None:
    rows = [{"text_bytes": 0, **shard.model_dump(), name: value} for shard, value in zip((entry(1), entry(2)), values)]
    schema = SCHEMA if name in SCHEMA.names else pa.schema([*SCHEMA, (name, pa.int64())])
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "list.parquet")
    content = (tmp_path / "list.parquet").read_bytes()
    listed = {"path": "list.parquet", "bytes": len(content), "checksum": bytes_checksum(content)}
    found = {key: value for key, value in manifest((entry(1),)).items() if key != "shards"}
    assert reason in str(outcome(tmp_path, found | {"version": 3, "lists": [listed]}))


CELLED = SourceEntry(weight=1, cells=make_cells(["en/a", "en/b"], weights=[2, 3]))
RUNS = (CellRun(0, again=False, rows=1, tokens=9, documents=1), CellRun(1, again=True, rows=2, tokens=9, documents=1))


def celled(runs: tuple[CellRun, ...] | None = RUNS, source: SourceEntry = CELLED, **options: Any) -> Snapshot:
    """A snapshot with one shard of three rows, of a source with two cells."""
    shards = (entry(1, sequences=3, cells=runs, split=options.pop("split", "train")),)
    phases = (Phase(until_tokens=None, weights=options.pop("weights", {"web": 1})),)
    tokenizer = TokenizerEntry(path="tokenizer.json", fingerprint="xxh3_128:t", vocab_size=1000, eos_id=0)
    form: dict[str, Any] = {"name": "celled", "seed": 1, "sequence_length": 16, "shard_format": "arrow", "tokenizer": tokenizer}
    return Snapshot(**form, sources={"web": source}, phases=phases, shards=shards, **options)


def test_snapshot_with_cells_is_read_as_it_was_written(tmp_path: Path) -> None:
    further = FurtherLength.of(celled().model_copy(update={"sequence_length": 8}))
    further = further.model_copy(update={"cells": {"web": (7, 0)}})
    snapshot = celled(further=(further,), weights={"web": 1, "web/*/a": 2}).sealed()
    for path, content in snapshot.to_files().items():
        Root(str(tmp_path)).write_atomic(path, content)
    found = read_snapshot(Root(str(tmp_path)))
    assert found == snapshot
    assert found.shards[0].cells == RUNS
    assert list(found.phases[0].weights) == ["web", "web/*/a"]
    of_length = found.of_length(8).sources["web"].cells
    assert of_length is not None
    assert (of_length.weights, of_length.names) == ((7, 0), ("en/a", "en/b"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"runs": RUNS[:1]}, "shards/web/.* do not add up to its rows"),
        ({"runs": None}, "do not add up to its rows"),
        ({"runs": (RUNS[0]._replace(cell=2), RUNS[1])}, "a cell that its source does not have"),
        ({"split": "validation"}, "its source or its split has no cells"),
        ({"source": SourceEntry(weight=1)}, "its source or its split has no cells"),
        ({"weights": {"web/en/c": 1}}, "'web/en/c', which is not a cell of source 'web'"),
        ({"weights": {"web/*": 1}}, "'web/\\*', and the cells of 'web' have names of 2 parts"),
        ({"weights": {"code/en/a": 1}}, "'code/en/a', which is not a source"),
    ],
)
def test_shards_and_weights_that_are_not_of_the_cells_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        celled(**change)


def test_strata_and_cells_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="strata or cells, not both"):
        SourceEntry(weight=1, cells=CELLED.cells, strata=Strata(column="score", bounds=(), repeats=(1,)))


@pytest.mark.slow
def test_manifest_of_many_shards_is_read_and_laid_out_without_an_object_for_each(tmp_path: Path) -> None:
    write(tmp_path, manifest(tuple(entry(number, f"s{number % 50}") for number in range(5000))))
    gc.collect()
    before = len(gc.get_objects())
    snapshot = read_snapshot(Root(str(tmp_path)))
    inventory = Inventory(snapshot, "train", 1, 8)
    gc.collect()
    assert len(gc.get_objects()) - before < 2500  # about 30 for each source
    assert inventory.layout.num_sequences == sum(10 + number for number in range(5000))


# ------------------------------------------------------------------------------------------------ manifests of other parties

_TRIED = 80
"""Of about 300 manifests, other ones for each way to open them."""

_LONG = "A" * 100_000
_NUMBERS = (-1, 0, 1, 2**31, 2**62 - 1, 2**63, 10**400, 1.5, 1e308, None, True, "x", [], {})
_TEXTS = ("", "..", "../../etc/passwd", "/dev/zero", "pipe", "folder", "endless", _LONG, "\x1b[2J", 7, None, [], {})
_OTHERS = (None, [], {}, [[]], {"x": 1}, "x", -1)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    snapshot = packed_shards.make_snapshot(folder, packed_shards.packed_batch(40, 32), target_bytes=4000)
    (folder / "snapshot.json").write_bytes(snapshot.to_json())
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "endless").symlink_to("/dev/zero")
    (folder / "mixture.yaml").write_text(
        f"name: other\noutput: {folder}/of-other\nsources:\n  old: {{snapshot: {folder}}}\n"
        f"tokenizer: {{path: {folder}/tokenizer.json}}\npack: {{sequence_length: 32}}\n"
    )
    return folder


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every field of a manifest, of lists the first entry."""
    if place:
        yield place, value
    children = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for name, child in children:
        yield from _places(child, (*place, name))


def _resealed(manifest: dict[str, Any], place: tuple[Any, ...], value: Any) -> bytes:
    """The manifest with another value in one place, as a run would write it."""
    changed = copy.deepcopy(manifest)
    parent = changed
    for name in place[:-1]:
        parent = parent[name]
    parent[place[-1]] = value
    if place != ("fingerprint",):
        del changed["fingerprint"]
        changed["fingerprint"] = packed_shards.digest_of(changed)
    return json.dumps(changed, indent=1, ensure_ascii=False).encode()


def _hostile(manifest: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    for place, value in _places(manifest):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        for other in _NUMBERS if is_number else _TEXTS if isinstance(value, str) else _OTHERS:
            yield f"{'.'.join(map(str, place))}: {str(other)[:30]}", _resealed(manifest, place, other)


def _load(output: Path) -> None:
    with closing(Loader(str(output), global_batch_size=2)) as loader:
        for _, _ in zip(loader, range(2)):
            loader.state_dict()


def _command(arguments: str) -> Callable[[Path], None]:
    def run(output: Path) -> None:
        shutil.rmtree(output.parent / "exported", ignore_errors=True)
        ended = datapipe([argument.format(output) for argument in arguments.split()])
        printed = ended.stdout + ended.stderr
        assert "defect of datapipe" not in printed, printed
        assert "Traceback" not in printed, printed
        assert len(printed) < 20_000, printed[:500]

    return run


_OPENERS: dict[str, Callable[[Path], object]] = {
    "loader": _load,
    "browse": lambda output: Inspector.open(str(output)).database,
    "serve": lambda output: ServedOutput("web", str(output)).open(OpenRequest(output="web", global_batch_size=2)),
    "verify": _command("verify {}"),
    "report": _command("report {}"),
    "snapshots": _command("snapshots {}"),
    "inspect": _command("inspect {}"),
    "trace": _command("trace {} --step 0 --global-batch-size 2 --text"),
    "export": _command("export {} --format parquet --to {}/../exported"),
    "megatron": _command("export {} --format megatron --to {}/../exported"),
    "plan": _command("plan {}/mixture.yaml"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", _OPENERS)
def test_resealed_manifest_is_read_or_refused_in_one_sentence(output: Path, name: str) -> None:
    manifest, opener = json.loads((output / "snapshot.json").read_bytes()), _OPENERS[name]
    _open("sound", opener, output)
    sound = (output / "snapshot.json").read_bytes()
    try:
        for what, content in random.Random(name).sample(list(_hostile(manifest)), _TRIED):
            (output / "snapshot.json").write_bytes(content)
            _open(what, opener, output)
    finally:
        (output / "snapshot.json").write_bytes(sound)


def _open(what: str, opener: Callable[[Path], object], output: Path) -> None:
    """Opens an output, which may be refused. Fails where that ends with another error than one for the user."""
    refusal = ""
    try:
        opener(output)
    except DatapipeError as error:
        refusal = str(error)
    except BaseException as error:
        error.add_note(what)
        raise
    assert len(refusal) < 3000, what


@pytest.mark.parametrize(
    "put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir], ids=["pipe", "endless", "folder"]
)
@pytest.mark.parametrize("name", ["snapshot.json", "tokenizer.json", "files.parquet", "shards", "lists"])
def test_pipe_device_or_folder_in_the_place_of_a_file_is_reported_and_not_waited_for(output, tmp_path, name, put):
    snapshot = read_snapshot(Root(str(output)))
    path = output / {"shards": snapshot.shards[0].path, "lists": snapshot.lists[0].path}.get(name, name)
    path.rename(tmp_path / "sound")
    try:
        put(path)
        for opener in _OPENERS.values():
            _open(name, opener, output)
    finally:
        path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / "sound").rename(path)
