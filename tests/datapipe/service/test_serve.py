"""A real server and its clients: the loader over the network is the loader of the files, byte for byte."""

import copy
import hashlib
import json
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import flight

from datapipe.errors import DatapipeError, SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.field_table import FIELDS
from datapipe.loader.remote.protocol import Ticket
from datapipe.loader.share import Mesh
from datapipe.service.serve import Running, ServeOptions
from datapipe.snapshots.takedown import take_down
from datapipe.storage.root import Root
from tests.support.certificates import Authority
from tests.support.cli_processes import wait_until
from tests.support.object_store import object_store
from tests.support.service import Server, served
from tests.support.snapshots import make_snapshot, source_path, upload

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")]

README = Path(__file__).resolve().parents[3] / "datapipe/service/README.md"
SIZES = {"code": 31, "web": 83, "zeta": 10}
PHASES = [(16 * 40, {"web": 1}), (16 * 75, {"code": 2, "zeta": 1}), (None, {"code": 1, "web": 1})]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("served") / "runs", SIZES, validation={"web": 9}, phases=PHASES)


@pytest.fixture(scope="module")
def server(output: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("server"), f"a/b={output}", "--no-files", "--batch-bytes", "64MB") as running:
        yield running


@contextmanager
def running(folder: Path, *outputs: str, **options: Any) -> Iterator[Running]:
    """A server in this process."""
    given = {"port": 0, "status_port": 0, "shares_files": False, "cache_folder": str(folder / "cache"), **options}
    made = Running(outputs, ServeOptions(**given))
    try:
        yield made
    finally:
        made.close()


def trained(url: str, **options: Any) -> closing[Any]:
    return closing(Loader(url, global_batch_size=7, **options))


def assert_same(here: dict[str, Any], there: dict[str, Any]) -> None:
    assert list(here) == list(there)
    for name, value in here.items():
        assert type(value) is type(there[name])
        np.testing.assert_array_equal(value, there[name])
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.shape) == (there[name].dtype, there[name].shape)
            assert there[name].flags.writeable


PER_TOKEN = ("input_ids", "labels", "position_ids", "segment_ids")
CONTEXT: dict[str, Any] = {"data_size": 2, "context_rank": 1, "context_size": 2}
OPTIONS: dict[str, dict[str, Any]] = {
    "all fields": {"global_batch_size": 7},
    "int32, unshifted": {"global_batch_size": 5, "dtype": "int32", "labels": "unshifted"},
    "a rank of three": {"global_batch_size": 8, "rank": 1, "world_size": 3},
    "a rank without rows": {"global_batch_size": 2, "rank": 0, "world_size": 3},
    "context ranks": {"mesh": Mesh(data_rank=0, **CONTEXT), "fields": (*PER_TOKEN, "sources", "step")},
    "split documents": {
        "mesh": Mesh(data_rank=1, layout="document_zigzag", **CONTEXT),
        "fields": (*PER_TOKEN, "cu_seqlens", "max_seqlen", "step"),
    },
    "room for runs": {"pad_cu_seqlens": 80},
    "skips": {"global_batch_size": 7, "skip": [(3, 5), (9, 10)], "skip_documents": [f"web/{source_path('web')}:1"]},
    "another mixture": {"global_batch_size": 6, "mixture": {"code": 0.1, "zeta": "0.3", "web": 1}, "group_rows": 3},
    "phases": {"global_batch_size": 6, "mixture": [(320, {"web": 1}), (None, {"code": 1})], "seed": 5, "window": 2},
    "rows as stored": {"global_batch_size": 6, "shuffle": False},
    "validation": {"split": "validation"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_client_gets_the_batches_and_states_of_a_local_loader(output: Path, server: Server, name: str) -> None:
    options = {"fields": tuple(FIELDS), "global_batch_size": 4, **OPTIONS[name]}
    here, there = Loader(output, **options), Loader(f"{server.location}/a/b", **options)
    assert (here.num_steps, here.sources, here.global_batch_size) == (there.num_steps, there.sources, there.global_batch_size)
    for mine, yours in zip(islice(here, 12), islice(there, 12), strict=True):
        assert_same(mine, yours)
        assert here.state_dict() == there.state_dict()
    assert_same(here.batch(2), there.batch(2))
    here.close()
    there.close()


def test_a_state_goes_from_files_to_the_service_and_back(output: Path, server: Server) -> None:
    url = f"{server.location}/a/b"
    here = Loader(output, global_batch_size=7)
    list(islice(here, 5))
    with trained(url) as there:
        there.load_state_dict(json.loads(json.dumps(here.state_dict())))
        for copied in (there, pickle.loads(pickle.dumps(there)), copy.deepcopy(there)):
            assert_same(here.batch(5), next(copied))
            assert copied.state_dict()["step"] == 6
            copied.close()
        options: dict[str, Any] = {"global_batch_size": 5, "rank": 1, "world_size": 2}
        local, grown = Loader(output, **options), Loader(url, **options)
        for loader in (local, grown):
            loader.load_state_dict(there.state_dict())
        assert_same(next(local), next(grown))
        assert local.state_dict() == grown.state_dict()
        grown.close()
    with trained(url, mixture={"code": 1, "web": 2, "zeta": 1}) as changed, pytest.raises(SnapshotError, match="migrate=True"):
        changed.load_state_dict(here.state_dict())


def test_seek_next_and_a_depth_of_none_move_one_position(output: Path, server: Server) -> None:
    here = Loader(output, global_batch_size=7)
    with trained(f"{server.location}/a/b", prefetch=0) as there:
        for step in (3, 4, 0, 11):
            there.seek(step)
            assert_same(here.batch(step), next(there))
        assert "steps" in str(there.stats())
        there.close()
        assert_same(here.batch(12), next(there))  # a closed loader stays usable


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("{}/a/b", {"fields": ("nope",)}, "nope"),
        ("{}/a/b", {"snapshot": "ffff"}, "ffff"),
        ("{}/a/b", {"mixture": {"nix": 1}}, "nix"),
        ("{}/a/b", {"skip_shards": ["nope"]}, "nope"),
        ("{}/a/b", {"global_batch_size": 1 << 19, "fields": ("input_ids",)}, "a batch of this rank takes"),
        ("{}/a/b", {"world_size": 3, "rank": 3}, "rank 3 of a world of 3"),
        ("{}/a", {}, "no output 'a' is served here"),
        ("{}/a/b?ca=/nowhere", {}, "ca=/nowhere"),
        ("{}/../b", {}, "no name of an output"),
        ("{}", {}, "no name of an output"),
    ],
)
def test_mistakes_are_reported_as_by_a_local_loader_and_without_paths(
    server: Server, url: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as told:
        next(Loader(url.format(server.location), **{"global_batch_size": 7, **options}))
    assert "/tmp" not in str(told.value)
    assert len(str(told.value)) < 1_000


def test_a_server_is_ready_drains_and_ends(output: Path, tmp_path: Path) -> None:
    with served(tmp_path, str(output), "--no-files") as server, trained(f"{server.location}/runs?wait_s=1") as loader:
        assert server.status("/healthz") == (200, "ok\n")
        assert server.status("/readyz") == (200, "ready\n")
        assert server.status("/other")[0] == 404
        assert next(loader)["input_ids"].shape == (7, 16)
        assert server.figure("datapipe_service_steps_total") >= 1
        assert server.end(signal.SIGTERM) == 0
        with pytest.raises(DatapipeError, match="no server of 'runs'"):
            list(islice(loader, 100_000))


@pytest.mark.slow
def test_a_client_needs_the_packages_that_the_readme_names_and_no_other(server: Server, output: Path) -> None:
    text = README.read_text(encoding="utf-8")
    [named] = re.findall(r"pip install --no-deps datapipe && pip install (.+)", text)
    program = (
        "import sys, json\n"
        "from importlib.machinery import PathFinder\n"
        "from importlib.metadata import packages_distributions\n"
        "needed = {'datapipe', 'pydantic_core', 'annotated_types', 'typing_extensions', 'typing_inspection'}\n"
        f"needed |= set({named.split()!r})\n"
        "absent = packages_distributions().keys() - sys.modules.keys() - needed\n"
        "class Installed(PathFinder):\n"
        "    find_spec = lambda name, *rest: None if name in absent else PathFinder.find_spec(name, *rest)\n"
        "sys.meta_path[sys.meta_path.index(PathFinder)] = Installed\n"
        "from datapipe.loader import Loader\n"
        f"loader = Loader('{server.location}/a/b', global_batch_size=4)\n"
        "next(loader); loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))\n"
        "heavy = [name for name in ('torch', 'pandas', 'yaml', 'ruamel') if sys.modules.get(name)]\n"
        "print(next(loader)['labels'].shape, heavy)\n"
        "loader.close()\n"
        f"Loader({str(output)!r}, batch_size=4)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "(4, 16) []", done.stderr
    assert "UserError: numba is not installed" in done.stderr


def test_on_the_same_machine_the_files_are_read_by_a_loader_and_its_copies(output: Path, tmp_path: Path) -> None:
    here = Loader(output, global_batch_size=7)
    with running(tmp_path, str(output), shares_files=True) as server, trained(f"{server.location}/runs") as there:
        assert_same(next(here), next(there))
        assert server.figures.get_sample_value("datapipe_service_streams_total") == 0
    assert_same(next(here), next(pickle.loads(pickle.dumps(there))))  # without the server


@pytest.mark.medium
def test_tls_with_tokens_that_change_while_a_trainer_reads(output: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("first")
    (tmp_path / "token").write_text("of-a-trainer\n")
    digest = hashlib.sha256(b"of-a-trainer").hexdigest()
    (tmp_path / "tokens.yaml").write_text(f"tokens: [{{name: a, sha256: {digest}, outputs: [runs], bytes_per_s: 1GB}}]")
    files = ["--tls-cert", str(certificate), "--tls-key", str(key), "--tokens", str(tmp_path / "tokens.yaml")]
    log = tmp_path / "events.json"
    with served(tmp_path / "s", str(output), f"other={output}", *files, "--no-files", "--log-json", str(log)) as server:
        assert server.location.startswith("grpc+tls://")
        url = f"{server.location}/runs?ca={authority.ca}&token_file={tmp_path / 'token'}&wait_s=30"
        here, there = Loader(output, global_batch_size=7), Loader(url, global_batch_size=7)
        for _ in range(3):
            assert_same(next(here), next(there))
        with pytest.raises(UserError, match="the token of 'a' may not read 'other'"):
            Loader(url.replace("/runs?", "/other?"), global_batch_size=7)
        with pytest.raises(UserError, match="its certificate is not trusted"):
            Loader(url.replace(f"ca={authority.ca}&", ""), global_batch_size=7)
        with pytest.raises(DatapipeError, match=r"its URL begins with grpc\+tls://"):
            Loader(url.replace("grpc+tls", "grpc").replace("wait_s=30", "wait_s=0.2"), global_batch_size=7)
        (tmp_path / "tokens.yaml").write_text("tokens: []")
        with pytest.raises(UserError, match="token"):
            list(islice(there, 100_000))
        for loader in (here, there):
            loader.close()
        assert "of-a-trainer" not in log.read_text() + server.log.read_text()


@pytest.mark.parametrize(
    ("more", "options", "words"),
    [
        ([], {"host": "0.0.0.0", "tokens": True}, "anyone on the way could read the tokens"),
        ([], {"certificate": True}, "both files"),
        ([], {"certificate": True, "key": True}, "PEM"),
        (["{output}"], {}, "two outputs are called 'runs'"),
        (["../no name"], {}, "no name"),
        (["nowhere"], {}, "no snapshot"),
        ([], {"port": "taken"}, "another process listens there"),
        ([], {"status_port": "taken"}, "status-port"),
    ],
)
def test_a_server_that_could_not_serve_reports_it(
    output: Path, server: Server, tmp_path: Path, more: list[str], options: dict[str, Any], words: str
) -> None:
    (tmp_path / "tokens.yaml").write_text("tokens: []")
    given = {name: {True: tmp_path / "tokens.yaml", "taken": server.port}.get(value, value) for name, value in options.items()}
    outputs = [str(output), *(text.format(output=output) for text in more)]
    with pytest.raises((UserError, SnapshotError), match=words):
        Running(outputs, ServeOptions(**{"port": 0, **given}))


def test_a_client_with_tls_of_a_server_without_it_is_reported_at_once(server: Server) -> None:
    for nowhere in ("grpc://a..b:8815/runs?wait_s=0", "grpc://127.0.0.1:9/runs?wait_s=0.2"):  # the first is no host's name
        with pytest.raises(DatapipeError, match="no server of"):
            Loader(nowhere, global_batch_size=7)
    with pytest.raises(UserError, match=r"it serves without TLS\. Expected a URL that begins with grpc://"):
        Loader(f"grpc+tls://127.0.0.1:{server.port}/runs", global_batch_size=7)


def test_any_client_of_flight_gets_a_large_batch_in_a_message(tmp_path: Path) -> None:
    folder = make_snapshot(tmp_path / "runs", {"web": 300}, sequence_length=2048)
    here = Loader(folder, global_batch_size=600, fields=("input_ids", "sources"))
    state = here.state_dict()
    order = {name: state[name] for name in ("snapshot", "seed", "lineage")} | {"window": state["window_shards"]}
    asked = {"fields": ("input_ids", "sources"), "mesh": Mesh(data_rank=0, data_size=1), "first": 0}
    wanted = Ticket(output="web", **order, **asked).to_json()
    with running(tmp_path, f"web={folder}") as server, flight.connect(server.location) as client:
        stream = client.do_get(flight.Ticket(wanted))
        [message] = [chunk.data for chunk in stream]  # of 9.8 MB
    flat = np.array(message.column("input_ids").flatten())
    np.testing.assert_array_equal(flat.reshape(600, 2048), here.batch(0)["input_ids"])
    assert json.loads(stream.schema.field("input_ids").metadata[b"shape"]) == [-1, 2048]


def test_a_loader_moves_to_a_newer_snapshot_of_a_service(output: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(output, folder)
    weights = {"code": 3, "web": 1, "zeta": 1}
    rewritten = make_snapshot(tmp_path / "rewritten", SIZES, validation={"web": 9}, weights=weights)
    with running(tmp_path, f"web={folder}") as server, trained(f"{server.location}/web") as there:
        first = there.snapshot.fingerprint
        taken = [next(there)["input_ids"] for _ in range(3)]
        assert there.advance() == first
        shutil.copytree(rewritten / "lists", folder / "lists", dirs_exist_ok=True)
        (rewritten / "snapshot.json").replace(folder / "snapshot.json")
        assert there.advance() != first
        taken += [next(there)["input_ids"] for _ in range(3)]
        here = Loader(folder, global_batch_size=7)
        here.load_state_dict(there.state_dict())
        for step, batch in enumerate(taken):
            np.testing.assert_array_equal(here.batch(step)["input_ids"], batch)


@pytest.mark.slow
def test_a_service_leaves_out_what_was_taken_down_from_the_step_of_the_move_on(tmp_path: Path) -> None:
    folder = make_snapshot(tmp_path / "runs", {"web": 83}, validation={"web": 9})
    (folder / "tokenizer.json").write_bytes(b"of these tests")
    options: dict[str, Any] = {"fields": ("input_ids", "labels", "document_keys")}

    def keys(batch: dict[str, Any]) -> set[bytes]:
        return {bytes(key) for key in batch["document_keys"].reshape(-1, 16)}

    here = Loader(folder, global_batch_size=7, **options)
    gone = sorted(set().union(*(keys(here.batch(step)) for step in range(12))))[1::3]
    with running(tmp_path, f"web={folder}") as server, trained(f"{server.location}/web", **options) as there:
        taken = [next(there) for _ in range(3)]
        take_down(Root(str(folder)), [key.hex() for key in gone])
        there.advance()
        taken += [next(there) for _ in range(4)]
        local = Loader(folder, global_batch_size=7, **options)
        with trained(f"{server.location}/web", **options) as again:
            for each in (local, again):
                each.load_state_dict(there.state_dict())
            for step, batch in enumerate(taken):
                assert_same(local.batch(step), batch)
                assert_same(again.batch(step), batch)
    assert [bool(keys(batch) & set(gone)) for batch in taken] == [True] * 3 + [False] * 4


@pytest.mark.slow
def test_an_output_on_an_object_store_is_fetched_ahead_of_its_readers(output: Path, tmp_path: Path) -> None:
    with object_store("served") as query:
        url = upload(output, f"s3://served/runs{query}")
        with running(tmp_path, f"web={url}") as server, trained(f"{server.location}/web", window=2) as there:
            here = Loader(output, global_batch_size=7, window=2)
            for mine, yours in zip(islice(here, 30), islice(there, 30), strict=True):
                assert_same(mine, yours)
            wait_until(lambda: any((tmp_path / "cache").rglob("*.arrow")), "shards in the cache")


@pytest.mark.slow
@pytest.mark.parametrize(("parent", "said"), [("fresh", "(8, 16)"), ("reading", "which do not survive a fork")])
def test_forked_workers_read_or_explain_why_not(server: Server, parent: str, said: str) -> None:
    """gRPC would stand still in a child of a process that has connections."""
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "tests.support.forked_loaders", f"{server.location}/a/b", parent]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert said in done.stdout, done.stderr
