"""Which rows a process takes, by arguments, torch.distributed, what launchers set, or a sharding of JAX; and their trace.

All ranks together take the global batch. The trace after any history: `tests/conformance/test_loader.py`.
"""

import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.jax import mesh_of
from datapipe.loader.share import Mesh
from datapipe.loader.trace import open_run, trace_document, trace_step
from datapipe.records.checksum import bytes_checksum
from tests.support import snapshots
from tests.support.snapshots import make_snapshot, source_path

pytestmark = pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")

PAIRS = [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")]


PAIRS += [(f"{name}_RANK", f"{name}_SIZE") for name in ("OMPI_COMM_WORLD", "PMI", "MV2_COMM_WORLD")]


@pytest.fixture(scope="module")
def plain_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"web": 40})


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the variables of a launcher, and no others."""

    def launch(**variables: object) -> None:
        for name in (name for pair in PAIRS for name in pair):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    launch()
    return launch


def rows(plain_output: Path, **options: Any) -> list[list[int]]:
    return next(Loader(plain_output, prefetch=0, **options))["input_ids"].tolist()


@pytest.mark.parametrize("size", [{"batch_size": 2}, {"global_batch_size": 8}])
def test_ranks_of_torchrun_share_the_global_batch(plain_output: Path, launched: Any, size: dict[str, int]) -> None:
    whole, parts = rows(plain_output, global_batch_size=8, rank=0, world_size=1), []
    for rank in range(4):
        launched(RANK=rank, WORLD_SIZE=4, LOCAL_RANK=rank)
        parts += rows(plain_output, **size)
    assert parts == whole


def test_arguments_win_over_the_environment(plain_output: Path, launched: Any) -> None:
    launched()
    expected = rows(plain_output, global_batch_size=8, rank=0, world_size=2)
    for variables in ({PAIRS[-1][0]: 3, PAIRS[-1][1]: 4}, {"RANK": 3, "WORLD_SIZE": 4}):
        launched(**variables)
        assert rows(plain_output, global_batch_size=8, rank=0, world_size=2) == expected
    assert (
        len(rows(plain_output, global_batch_size=8, rank=3)) == len(rows(plain_output, global_batch_size=8, world_size=4)) == 2
    )


@pytest.mark.parametrize(
    ("variables", "options", "words"),
    [
        ({"WORLD_SIZE": 4}, {}, "WORLD_SIZE=4 and no RANK"),
        ({"RANK": 1}, {}, "RANK=1 and no WORLD_SIZE"),
        ({"RANK": 4, "WORLD_SIZE": 4}, {}, "RANK=4"),
        ({"RANK": -1, "WORLD_SIZE": 4}, {}, "RANK=-1"),
        ({"RANK": 0, "WORLD_SIZE": 0}, {}, "WORLD_SIZE=0"),
        ({"RANK": "one", "WORLD_SIZE": 4}, {}, "RANK='one'"),
        ({"RANK": 1, "WORLD_SIZE": 4}, {"rank": 2}, "rank=2, but this process is rank 1 of 4"),
        ({"RANK": 1, "WORLD_SIZE": 4}, {"world_size": 2}, "world_size=2, but this process is rank 1 of 4"),
        ({"OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 2}, {"world_size": 2}, "OMPI_COMM_WORLD_RANK"),
        *(({rank: 1, size: 2}, {}, rank) for rank, size in PAIRS[2:]),
    ],
)
def test_environment_that_does_not_report_the_rank_is_refused(
    plain_output: Path, launched: Any, variables: dict[str, object], options: dict[str, int], words: str
) -> None:
    launched(**variables)
    with pytest.raises(UserError, match=words):
        Loader(plain_output, batch_size=2, **options)
    assert len(rows(plain_output, batch_size=2, rank=0, world_size=2)) == 2


@pytest.mark.parametrize(
    "variables", [{}, {"WORLD_SIZE": 1}, {"RANK": 0, "WORLD_SIZE": 1}, {"RANK": ""}, {"SLURM_PROCID": 0, "SLURM_NTASKS": 8}]
)
def test_process_that_is_alone_reads_every_row(plain_output: Path, launched: Any, variables: dict[str, object]) -> None:
    """A batch script of Slurm is one process, whatever the number of its tasks."""
    launched(**variables)
    assert len(rows(plain_output, global_batch_size=8)) == 8


def test_copy_in_another_process_has_the_rank_of_the_original(plain_output: Path, launched: Any) -> None:
    launched(RANK=1, WORLD_SIZE=2)
    loader = Loader(plain_output, batch_size=4)
    launched(RANK=0, WORLD_SIZE=2)
    np.testing.assert_array_equal(next(pickle.loads(pickle.dumps(loader)))["input_ids"], next(loader)["input_ids"])


@pytest.mark.parametrize("world", range(1, 10))
def test_rows_of_all_ranks_are_the_batch(world: int) -> None:
    for size in (0, 1, 7, 9, 32):
        parts = [range(*Mesh(data_rank=rank, data_size=world).share(0, size)) for rank in range(world)]
        assert [row for part in parts for row in part] == list(range(size))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("layout", "expected"), [("contiguous", [[0, 1, 2, 3], [4, 5, 6, 7]]), ("zigzag", [[0, 1, 6, 7], [2, 3, 4, 5]])]
)
def test_columns_share_the_tokens_of_a_row(layout, expected) -> None:
    meshes = [Mesh(data_rank=0, data_size=1, context_rank=rank, context_size=2, layout=layout) for rank in range(2)]
    assert [mesh.columns(8).tolist() for mesh in meshes] == expected
    assert Mesh(data_rank=0, data_size=1).columns(8) is None


@dataclass(frozen=True)
class Device:
    number: int
    process_index: int


@dataclass
class Devices:
    """A mesh: the devices by axis, and the names of the axes."""

    devices: np.ndarray
    names: tuple[str, ...]

    @property
    def shape(self) -> dict[str, int]:
        return dict(zip(self.names, self.devices.shape))


class Sharding:
    """A NamedSharding as a process of several sees it."""

    def __init__(self, mesh: Devices, spec: tuple[Any, ...], process: int) -> None:
        self.mesh, self.spec = mesh, spec
        self.addressable_devices = {each for each in mesh.devices.flat if each.process_index == process}

    def devices_indices_map(self, global_shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        sizes, found = self.mesh.shape, {}
        for place, device in np.ndenumerate(self.mesh.devices):
            at, index = dict(zip(self.mesh.names, place)), []
            for axis, size in enumerate(global_shape):
                given = self.spec[axis] if axis < len(self.spec) else None
                names = () if given is None else (given,) if isinstance(given, str) else given
                number = 0
                for name in names:
                    number = number * sizes[name] + at[name]
                part = size // math.prod(sizes[name] for name in names)
                index.append(slice(number * part, (number + 1) * part) if names else slice(None))
            found[device] = tuple(index)
        return found


def shardings(
    shape: tuple[int, ...], names: str, spec: tuple[Any, ...], num_processes: int, order: Any = None
) -> list[Sharding]:
    """That of each process. `order`: the devices of the mesh, by number; a process has neighbouring numbers."""
    count = math.prod(shape)
    devices = [Device(number, number * num_processes // count) for number in range(count)]
    placed = np.empty(count, object)
    placed[:] = [devices[number] for number in (order or range(count))]
    mesh = Devices(placed.reshape(shape), tuple(names.split()))
    return [Sharding(mesh, spec, process) for process in range(num_processes)]


@pytest.mark.parametrize(
    ("shape", "names", "spec", "num_processes", "expected"),
    [
        ((4,), "data", ("data",), 1, [(0, 1, 0, 1)]),
        ((4,), "data", ("data",), 2, [(0, 2, 0, 1), (1, 2, 0, 1)]),
        ((4,), "data", ("data", None), 4, [(0, 4, 0, 1), (1, 4, 0, 1), (2, 4, 0, 1), (3, 4, 0, 1)]),
        ((2, 2), "data model", ("data",), 2, [(0, 2, 0, 1), (1, 2, 0, 1)]),
        ((2, 2), "model data", ("data",), 2, [(0, 1, 0, 1)] * 2),  # the trap: a model axis over processes
        ((2, 4), "data model", ("data",), 4, [(0, 2, 0, 1)] * 2 + [(1, 2, 0, 1)] * 2),
        ((2, 2), "replica data", (("replica", "data"),), 2, [(0, 2, 0, 1), (1, 2, 0, 1)]),
        ((2, 2), "data context", ("data", "context"), 4, [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 0, 2), (1, 2, 1, 2)]),
        ((2, 2), "data context", ("data", "context"), 2, [(0, 2, 0, 1), (1, 2, 0, 1)]),
        ((4,), "model", (), 2, [(0, 1, 0, 1)] * 2),
    ],
)
def test_mesh_of_a_sharding_has_the_rows_of_its_devices(
    shape: tuple[int, ...], names: str, spec: tuple[Any, ...], num_processes: int, expected: list[tuple[int, ...]]
) -> None:
    meshes = [mesh_of(each) for each in shardings(shape, names, spec, num_processes)]
    assert [(each.data_rank, each.data_size, each.context_rank, each.context_size) for each in meshes] == expected


@pytest.mark.parametrize(
    ("shape", "names", "spec", "order"),
    [
        ((4,), "data", ("data",), [0, 2, 1, 3]),  # process 0 has the parts 0 and 2
        ((2, 2), "data context", ("data", "context"), [0, 2, 3, 1]),  # and here (0, 0) and (1, 1)
        ((4,), "data", ("data",), [2, 0, 1, 3]),
    ],
)
def test_sharding_whose_process_has_no_slice_is_refused(shape: Any, names: str, spec: Any, order: list[int]) -> None:
    for sharding in shardings(shape, names, spec, 2, order):
        with pytest.raises(UserError):
            mesh_of(sharding)


def test_what_is_no_sharding_of_this_process_is_refused() -> None:
    [sharding] = shardings((4,), "data", ("data",), 1)
    for wrong in (3, Sharding(sharding.mesh, ("data",), 1), Sharding(sharding.mesh, (object(),), 0)):
        with pytest.raises(UserError):
            mesh_of(wrong)  # type: ignore[arg-type]


S = 16
FIELDS = ("input_ids", "sources", "piece_offsets", "piece_lengths", "piece_starts", "document_keys")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, phases = tmp_path_factory.mktemp("snapshot"), [(S * 60, {"code": 1, "web": 3}), (None, {"code": 2, "web": 1})]
    return make_snapshot(folder, {"code": 12, "web": 31}, phases=phases, validation={"web": 7}, total_tokens=S * 200)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_trace_step_names_the_pieces_of_every_rank(output: Path, split: str) -> None:
    for rank in range(3):
        loader = Loader(output, split=split, global_batch_size=7, rank=rank, world_size=3, fields=FIELDS)
        batch = loader.batch(0)
        rows = trace_step(output, 0, global_batch_size=7, rank=rank, world_size=3, split=split)
        assert [row.key for row in rows] == [key.tobytes().hex() for key in batch["document_keys"]]
        assert [row.token_start for row in rows] == batch["piece_starts"].tolist()
        assert [row.num_tokens for row in rows] == batch["piece_lengths"].tolist()
        for row in rows:
            assert (row.rank, row.source) == (rank, loader.sources[batch["sources"][row.row]])
            assert row.path == source_path(row.source)
            assert row.shard.startswith(f"shards/{row.source}/{split}")
            if row.token_start == 0:
                at = sum(other.num_tokens for other in rows if other.row == row.row and other.piece < row.piece)
                assert row.position + 1 == batch["input_ids"][row.row, at]


@pytest.mark.slow
def test_trace_document_finds_every_step_it_appears_at(output: Path) -> None:
    appeared: dict[str, list[tuple[int, int, int, int]]] = {}
    for step in range(28):
        for row in trace_step(output, step, global_batch_size=7, world_size=3):
            appeared.setdefault(row.key, []).append((step, row.rank, row.row, row.piece))
    for key in sorted(appeared)[::5]:
        found = trace_document(output, key, global_batch_size=7, world_size=3, num_epochs=20)
        assert [(one.step, one.rank, one.row, one.piece) for one in found] == appeared[key]
    with pytest.raises(UserError, match="step 28 is not in this run"):
        trace_step(output, 28, global_batch_size=7)


def test_trace_document_finds_documents_of_the_validation_split(output: Path) -> None:
    row = trace_step(output, 1, global_batch_size=5, split="validation")[0]
    found = trace_document(output, row.key, global_batch_size=5, split="validation")
    assert (1, row.row, row.shard_row) in [(one.step, one.row, one.shard_row) for one in found]
    assert trace_document(output, row.key, global_batch_size=5) == []


@pytest.mark.parametrize("key", ["", "12", "not hex", "00" * 17])
def test_trace_document_of_no_key_is_refused(output: Path, key: str) -> None:
    with pytest.raises(UserError, match="expected SOURCE/PATH:POSITION"):
        trace_document(output, key, global_batch_size=5)


@pytest.mark.parametrize("content", [b"\xff", b"{}", b'{"model": ' + b"[" * 100_000])
def test_trace_step_with_a_tokenizer_that_is_none_reports_it(content: bytes, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(snapshots, "TOKENIZER", bytes_checksum(content))
    output = make_snapshot(tmp_path / "out", {"code": 4})
    (output / "tokenizer.json").write_bytes(content)
    with pytest.raises(SnapshotError, match=r"tokenizer\.json: .*Expected a tokenizer\.json"):
        trace_step(output, 0, global_batch_size=2, text=True)


def test_trace_document_of_rows_in_another_output_names_its_snapshot(tmp_path: Path) -> None:
    both = make_snapshot(tmp_path / "both", {"code": 12, "web": 31})
    one = make_snapshot(tmp_path / "one", {"code": 12})
    before = Loader(both, global_batch_size=5, prefetch=0)
    before.seek(4)
    after = Loader(one, global_batch_size=5, prefetch=0, migrate=True)
    after.load_state_dict(before.state_dict())
    state = after.state_dict()
    key = next(row.key for row in trace_step(both, 1, global_batch_size=5) if row.source == "web")
    with pytest.raises(SnapshotError, match="steps 0 to 3 drew 'web' from snapshot"):
        trace_document(one, key, state=state)
    assert open_run(one, state=state).find_document(key).appearances == []
    kept = next(row.key for row in trace_step(both, 1, global_batch_size=5) if row.source == "code")
    assert 1 in [found.step for found in trace_document(one, kept, state=state)]


@pytest.mark.medium
def test_find_document_reports_what_was_searched(output: Path, tmp_path: Path) -> None:
    key = trace_step(output, 6, global_batch_size=7)[0].key
    loader = Loader(output, global_batch_size=7, prefetch=0)
    start = loader.state_dict()
    loader.seek(6)
    cases: list[tuple[dict[str, Any], int | None, str, bool]] = [
        ({"state": start}, None, "nothing: the state is at step 0", False),
        ({"state": loader.state_dict()}, None, "the 6 steps that the state counts", False),
        ({"state": loader.state_dict()}, 20, "the first 20 epochs of its source", True),
        ({"global_batch_size": 7}, None, "all 28 steps of the run", True),
    ]
    for options, num_epochs, searched, is_found in cases:
        found = open_run(output, **options).find_document(key, num_epochs)
        assert searched in found.searched
        assert (6 in [one.step for one in found.appearances]) == is_found
    endless = make_snapshot(tmp_path, {"code": 12, "web": 31})
    assert "the run has no end" in open_run(endless, global_batch_size=7).find_document(key).searched
    for row in trace_step(endless, 0, global_batch_size=7):  # a batch that is larger than memory needs no array
        appearances = open_run(endless, global_batch_size=1 << 40).find_document(row.key).appearances
        assert (0, 0, row.row) in [(one.step, one.rank, one.row) for one in appearances]


@pytest.mark.medium
def test_trace_knows_the_smaller_last_batch_that_a_state_counts(output: Path) -> None:
    loader = Loader(output, global_batch_size=7, fields=FIELDS, prefetch=0, drop_last=False)
    *_, last = loader
    assert (loader.step, len(last["input_ids"])) == (29, 4)
    state = loader.state_dict()
    assert [row.key for row in trace_step(output, 28, state=state)] == [key.tobytes().hex() for key in last["document_keys"]]
    for key in {key.tobytes().hex() for key in last["document_keys"]}:
        assert 28 in [one.step for one in trace_document(output, key, state=state)]
        assert 28 not in [one.step for one in trace_document(output, key, global_batch_size=7)]
