"""A run whose input and output are on an object store: the same shards, resumed there, streamed from there."""

import json
import random
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
import pytest

from datapipe.config import load_mixture
from datapipe.engine import attempts, retries
from datapipe.engine.run import Run
from datapipe.engine.run_report import run_and_report
from datapipe.errors import DatapipeError, UserError
from datapipe.loader import Loader
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.snapshots.clean import clean
from datapipe.snapshots.export.export import ExportRequest, export_snapshot
from datapipe.snapshots.export.text import parts_of_text
from datapipe.snapshots.export.write import write_dataset
from datapipe.snapshots.verify import verify_snapshot
from datapipe.storage.lock import exclusive
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.command_line import datapipe
from tests.support.unreliable_store import Fault, Kind, UnreliableStore

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def _upload(folder: Path, query: str, prefix: str, ending: str) -> None:
    """Writes three files into a folder, and the same below a prefix of the bucket."""
    store = Root(f"s3://outputs/{prefix}{query}")
    for number in range(3):
        path = corpora.write_jsonl(folder / f"web/{number}.{ending}", corpora.documents(number, 100))
        store.write_atomic(path.name, path.read_bytes())


@pytest.fixture(scope="module")
def finished(query, tmp_path_factory):
    """The same corpus run from and to the store, and from and to the local disk."""
    folder = tmp_path_factory.mktemp("store")
    _upload(folder, query, "web", "jsonl.zst")
    remote = runs.write_mixture(folder, f"  web:\n    path: s3://outputs/web/*.jsonl.zst{query}\n", name="remote.yaml")
    local = runs.write_mixture(folder, f"  web:\n    path: {folder}/web/*.jsonl.zst\n", name="local.yaml")
    output = f"s3://outputs/out{query}"
    return remote, runs.run_mixture(remote, output=output), runs.run_mixture(local, make_engine=runs.InProcess)


@pytest.mark.each_kind
def test_object_store_run_gives_the_shards_of_a_local_run_and_run_again_runs_nothing(finished):
    path, remote, local = finished
    assert (remote.checksums, remote.snapshot) == (local.checksums, local.snapshot)
    assert verify_snapshot(Root(remote.mixture.output), remote.snapshot) == []
    again = runs.run_mixture(path, output=remote.mixture.output)
    assert again.watcher.records == []
    assert again.snapshot == remote.snapshot


def test_object_store_output_is_locked_while_a_run_holds_it(finished):
    path, remote, _ = finished
    root = Root(remote.mixture.output)
    with exclusive(root), pytest.raises(UserError, match="another run"):
        runs.run_mixture(path, output=remote.mixture.output)
    assert json.loads(root.read_bytes("work/lock.json"))["holder"] == ""


class _Recorded(UnreliableStore):
    """Records the actions of S3 that requests need, by the first folder of their keys; "" for requests without a key."""

    def __init__(self, query: str) -> None:
        super().__init__(urlsplit(dict(parse_qsl(query.removeprefix("?")))["endpoint_override"]).netloc)
        self.actions: defaultdict[str, set[str]] = defaultdict(set)

    def fault_of(self, method: str, path: str, authorization: str | None) -> Fault | None:
        url = urlsplit(path)
        names, key = dict(parse_qsl(url.query, keep_blank_values=True)), unquote(url.path).split("/", 2)[2:]
        action = {"PUT": "PutObject", "POST": "PutObject", "DELETE": "DeleteObject"}.get(method, "GetObject")
        if "delete" in names:
            action = "DeleteObject"
        elif "list-type" in names:
            action, key = "ListBucket", [names.get("prefix", "")]
        with self.lock:
            self.actions["".join(key).partition("/")[0]].add(action)
        return None


_PERMISSIONS = re.compile(r"^\|([^|]*)\|([^|]*)\|([^|]*`GetObject`[^|]*)\|$", re.M)
_ACTION = re.compile(r"[A-Z]\w+(?=`)")


def test_guide_names_the_permissions_that_the_requests_of_each_command_need(query, tmp_path):
    _upload(tmp_path, query, "web", "jsonl.zst")
    guide = (Path(__file__).resolve().parents[3] / "mixtures/guides/cluster.md").read_text()
    rows = [(who, *(set(_ACTION.findall(cell)) for cell in cells)) for who, *cells in _PERMISSIONS.findall(guide)]
    with closing(_Recorded(query)) as store:
        output = f"s3://outputs/permitted{store.query}"
        mixture = runs.write_mixture(tmp_path, f"  web:\n    path: s3://outputs/web/*.jsonl.zst{store.query}\n")

        run = Run(load_mixture(mixture, (), output), runs.Watcher(), make_engine=runs.InProcess)

        def load() -> None:
            with closing(Loader(output, batch_size=4)) as loader:
                next(loader)

        def command(*arguments: str) -> Callable[[], None]:
            def check() -> None:
                done = datapipe(arguments)
                assert done.returncode == 0, done.stderr

            return check

        takedown = ("takedown", output, "web/0.jsonl.zst:0")
        calls = {
            "run`": lambda: run_and_report(run).raise_problem(),
            "`datapipe plan`": command("plan", str(mixture), "--output", output),
            "`inspect`": command("inspect", output, "--dropped", "all"),
            "a loader": load,
            **{f"`{name}`": command(name, output) for name in ("status", "report", "snapshots", "verify")},
            "`trace`": command("trace", output, "--step", "0", "--global-batch-size", "4"),
            "takedown`": command(*takedown),
            "`clean`": command("clean", output),
            "export`": command("export", output, "--format", "parquet", "--to", f"s3://outputs/copy{store.query}"),
        }
        used: defaultdict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
        for name, call in calls.items():
            store.actions.clear()
            call()
            [(who, of_input, of_output)] = [row for row in rows if name in row[0]]
            copied = store.actions["copy"]
            deleted = set() if copied else store.actions[""]
            used[who][0].update(store.actions["web"])
            used[who][1].update(store.actions["permitted"] | deleted)
            assert store.actions["web"] <= of_input and used[who][1] <= of_output, name
            assert copied <= rows[0][2]
        for who, of_input, of_output in rows:
            assert (used[who][0] | {"ListBucket"}, used[who][1] | {"ListBucket"}) == (of_input | {"ListBucket"}, of_output), who


def test_object_store_loader_gives_the_batches_of_the_local_snapshot(finished):
    _, remote, local = finished
    there, here = (Loader(run.mixture.output, global_batch_size=4) for run in (remote, local))
    with closing(there), closing(here):
        for step in range(5):
            np.testing.assert_array_equal(there.batch(step)["input_ids"], here.batch(step)["input_ids"])


def _exported(snapshot: Snapshot, format: str, kind: str, root: Root, target: Root) -> None:
    if kind == "rows":
        export_snapshot(root, snapshot, target, ExportRequest(format=format))
        return
    wanted = ExportRequest(format=format, kind="text")
    write_dataset(root, snapshot, target, wanted, parts_of_text(root, snapshot, None, None))


@pytest.mark.parametrize(
    ("format", "kind", "other"),
    [
        ("arrow", "rows", "megatron"),
        ("parquet", "rows", "megatron"),
        ("megatron", "rows", "arrow"),
        *((format, "texts", "parquet" if format == "mds" else "mds") for format in ("mds", "jsonl", "parquet")),
    ],
)
def test_object_store_export_equals_one_to_the_local_disk(finished, query, tmp_path, format, kind, other):
    _, remote, _ = finished
    root, near = Root(remote.mixture.output), Root(str(tmp_path / "near"))
    far = Root(f"s3://outputs/{kind}-{format}{query}")
    for target in (far, near, far):  # it is whole the second time
        _exported(remote.snapshot, format, kind, root, target)
    assert far.list_files("") == near.list_files("")
    assert all(far.read_bytes(path) == near.read_bytes(path) for path, _ in near.list_files(""))
    for taken, name in ((far, other), (root.within("copy"), format)) if kind == "rows" else ((far, other),):
        with pytest.raises(UserError):
            _exported(remote.snapshot, name, kind, root, taken)


def _upstream(query: str) -> str:
    return urlsplit(dict(parse_qsl(query.removeprefix("?")))["endpoint_override"]).netloc


def test_store_that_goes_away_stops_the_run_in_plain_words_and_the_same_command_goes_on(finished, query, tmp_path, monkeypatch):
    monkeypatch.setattr(retries, "POLICY", replace(retries.POLICY, most_s=1.0))
    monkeypatch.setattr(attempts, "LONGEST_WAIT_S", 0.0)  # else all input is read before the first commit
    _, _, local = finished
    proxy = UnreliableStore(_upstream(query))
    limits = f"{proxy.query}&connect_timeout=9&request_timeout=9&max_attempts=1"
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: s3://outputs/web/*.jsonl.zst{limits}\n")
    watcher = runs.Watcher(on_commit=lambda record: proxy.close() if len(watcher.records) == 1 else None)
    with pytest.raises(DatapipeError, match=r"no answer: .*run the same command") as stopped:
        runs.run_mixture(mixture, watcher=watcher, workers=1)
    assert not isinstance(stopped.value, UserError)
    told = [failure.message for failure in watcher.retries]
    assert len(set(told)) == len(told) > 0
    for line in [*told, str(stopped.value)]:
        assert line.startswith("s3://outputs/web/"), line  # the output is on a disk
    done = runs.run_mixture(runs.write_mixture(tmp_path, f"  web:\n    path: s3://outputs/web/*.jsonl.zst{query}\n"))
    assert watcher.records[0].fingerprint not in {record.fingerprint for record in done.watcher.records}
    assert done.checksums == local.checksums


class _BadNetwork(UnreliableStore):
    """Delays every answer by 20 ms, loses 5 % of them and flips a bit in the first and in 1 % of the objects below a prefix."""

    def __init__(self, upstream: str, flips: tuple[str, ...]) -> None:
        super().__init__(upstream)
        self.hits, self._flips, self._rng, self._choice = Counter[str](), flips, random.Random(7), threading.Lock()

    def fault_of(self, method: str, path: str, authorization: str | None) -> Fault | None:
        self.ended.wait(0.02)
        with self._choice:
            chance, after = self._rng.random(), self._rng.randrange(4000)
            is_flipped = (chance < 0.06 or not self.hits["flip"]) and method == "GET" and path.startswith(self._flips)
            kind: Kind | None = "lost" if chance < 0.05 else "flip" if is_flipped else None
            if kind is None:
                return None
            self.hits[kind] += 1
            return Fault(kind=kind, path=path, after=after, status=0, left=1, method=method)


@pytest.mark.timeout(900)
def test_run_over_a_network_that_loses_flips_and_delays_ends_with_the_bytes_of_a_sound_one(query, tmp_path):
    _upload(tmp_path, query, "bad-in", "jsonl.gz")
    local = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/web/*.jsonl.gz\n", name="sound.yaml")
    sound = runs.run_mixture(local, make_engine=runs.InProcess)
    with closing(_BadNetwork(_upstream(query), ("/outputs/bad/", "/outputs/bad-in/"))) as network:
        mixture = runs.write_mixture(tmp_path, f"  web:\n    path: s3://outputs/bad-in/*.jsonl.gz{network.query}\n")
        ran = runs.run_mixture(mixture, output=f"s3://outputs/bad{network.query}")
        assert (ran.checksums, ran.snapshot) == (sound.checksums, sound.snapshot)
        assert min(network.hits["lost"], network.hits["flip"]) > 0
        assert "read_again" in {warning.kind for warning in ran.warnings}
    output = Root(f"s3://outputs/bad{query}")
    assert verify_snapshot(output, read_snapshot(output)) == []


def test_files_that_nothing_reads_go_from_the_store_and_a_lost_shard_is_made_again(finished, query):
    path, remote, _ = finished
    output = f"s3://outputs/none{query}"
    freed = runs.run_mixture(path, output=output, overrides=["execution.keep_work=none"])
    root = Root(output)
    assert freed.snapshot == remote.snapshot
    names = {path.rpartition("/")[2] for path, _ in root.list_files("work/attempts")}
    assert not [name for name in names if name.startswith(("part-", "documents", "train.", "kept", "bands"))]
    root.delete(freed.snapshot.shards[0].path)
    again = runs.run_mixture(path, output=output, overrides=["execution.keep_work=none"])
    assert verify_snapshot(root, again.snapshot) == []
    kept = Root(remote.mixture.output)
    clean(kept, 1, work=True)
    assert verify_snapshot(kept, remote.snapshot) == []
    assert runs.run_mixture(path, output=kept.url).watcher.records == []
