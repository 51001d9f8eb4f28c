"""The Ray engine on a real cluster of two nodes: the bytes of local workers, user stages shipped, lost tasks retried."""

import json
import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from datapipe.config import load_mixture
from datapipe.engine.cluster.on_node import Expectation
from datapipe.engine.events import AttemptEvent, Committed, Event, EventLog
from datapipe.engine.history import node_hours
from datapipe.engine.run import planned
from datapipe.errors import DatapipeError, UserError
from datapipe.kernels.cache import kernels_folder
from datapipe.machine.json_log import JsonLog
from datapipe.storage import file_cache
from datapipe.storage.root import Root
from tests.support import cell_runs, corpora, dedup_runs, hostile_stages, repository_runs, runs, web_archives
from tests.support.cli_processes import is_running, run, start, wait_until
from tests.support.fasttext_files import Recipe
from tests.support.late_import import late_import
from tests.support.ledger_files import stored_records
from tests.support.object_store import object_store
from tests.support.ray_workers import ray_workers
from tests.support.separate_nodes import separate_nodes
from tests.support.web_server import web_server

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]

ray_engine = late_import("datapipe.engine.ray")


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    made.shutdown()


def _web(folder: Path, num_files: int = 1, tail: str = runs.TAIL) -> Path:
    """A mixture over files of 30 documents each, which all are kept."""
    for number in range(num_files):
        corpora.write_jsonl(folder / f"web/{number:02}.jsonl", corpora.documents(number, 30, exact=0, near=0, short=0))
    return runs.write_mixture(folder, f"  web:\n    path: {folder}/web/*.jsonl\n", "stages: [normalize.unicode]", tail)


@pytest.fixture
def hostile(tmp_path, monkeypatch) -> Callable[[dict[int, str]], Path]:
    """Writes a mixture with a stage that does what the words of documents ask."""
    hostile_stages.write_module(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda marks: hostile_stages.write_mixture(tmp_path, marks)


def _on(cluster):
    return lambda root, request: ray_engine.RayEngine(root, request, cluster.address)


@pytest.mark.each_kind
def test_ray_two_nodes_split_a_crawl_in_40_languages_as_local_workers_do(tmp_path, cluster):
    cell_runs.write_corpus(tmp_path)
    mixture = cell_runs.write_mixture(tmp_path, tmp_path)
    local = runs.run_mixture(mixture, output=tmp_path / "local", workers=2)
    ray = runs.run_mixture(mixture, output=tmp_path / "ray", make_engine=_on(cluster))
    assert ray.snapshot == local.snapshot
    assert len(ray.watcher.records) == len(local.watcher.records)


@pytest.mark.each_kind
def test_ray_two_nodes_drop_cut_and_pack_what_local_workers_do(tmp_path, cluster):
    """With all four stages of deduplication, components in rounds."""
    corpus = dedup_runs.write_corpus(tmp_path / "corpus")
    mixture = dedup_runs.write_mixture(tmp_path, corpus)
    local = runs.run_mixture(mixture, output=tmp_path / "local", make_engine=runs.InProcess)
    ray = runs.run_mixture(mixture, output=tmp_path / "ray", make_engine=_on(cluster))
    assert dedup_runs.outcome(ray) == dedup_runs.outcome(local)
    assert ray.snapshot == local.snapshot
    assert len(ray.watcher.records) == len(local.watcher.records)
    assert node_hours(Root(str(tmp_path / "ray"))) > 0 == node_hours(Root(str(tmp_path / "local")))


def test_ray_names_tasks_by_source_and_step_and_reports_the_node_of_each_attempt(tmp_path, cluster, mixture):
    """Ray's timeline has the names that its dashboard and `ray summary tasks` show."""
    import ray

    ray.init(address=cluster.address, log_to_driver=False)
    try:
        nodes = {f"{node['NodeID'][:12]} ({node['NodeManagerAddress']})" for node in ray.nodes()}
        with closing(JsonLog(str(tmp_path / "log.jsonl"))) as log:
            observer = EventLog(log).observe
            done = runs.run_mixture(mixture, overrides=["tokenizer=none"], make_engine=_on(cluster), observer=observer)
        steps = {f"task::{step.id}" for step in done.plan.steps}
        wait_until(lambda: steps <= {event["cat"] for event in ray.timeline()}, "the names of all steps")
    finally:
        ray.shutdown()
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    started, committed = ([each for each in events if each["event"] == f"task_{name}"] for name in ("started", "committed"))
    assert {f"task::{event['step']}" for event in started} == steps and {event["node"] for event in started} <= nodes
    told = [{(event["attempt"], event["node"], event["task"]) for event in each} for each in (started, committed)]
    assert told[0] == told[1] and len(told[0]) == len(started) == len(committed)


def _of_documents(folder: Path, corpus: str, written: str) -> tuple[Path, list[str]]:
    mixture = dedup_runs.write_mixture(folder, dedup_runs.write_corpus(folder / "corpus"))
    return mixture, ["tokenizer=none", f"documents.format={written}", "documents.target_bytes=8KiB"]


def _of_a_share(folder: Path, corpus: str, written: str) -> tuple[Path, list[str]]:
    model = Recipe(labels=("0", "hq")).write(folder / "q.bin")
    stages = f"stages:\n  - filter.classifier: {{model: {model}, keep_share: 30%}}\n"
    return runs.write_mixture(folder, corpus, stages, "tokenizer: none\n"), ["execution.split_bytes=16KiB"]


def _of_repositories(folder: Path, corpus: str, written: str) -> tuple[Path, list[str]]:
    repository_runs.write(folder / "files", repository_runs.files())
    mixture = repository_runs.write_mixture(folder, folder / "files", tail="tokenizer: none\n")
    return mixture, ["execution.split_bytes=4KiB", "execution.bucket_bytes=4KiB"]


def _of_an_unsplittable_file(folder: Path, corpus: str, written: str) -> tuple[Path, list[str]]:
    return web_archives.write_unsplittable(folder), []


@pytest.mark.parametrize(
    ("write", "written"),
    [
        (_of_documents, "parquet"),
        (_of_documents, "jsonl.zst"),
        (_of_a_share, "parquet"),
        (_of_repositories, "parquet"),
        pytest.param(_of_an_unsplittable_file, "", marks=pytest.mark.needs("fastwarc", "isal")),
    ],
    ids=lambda case: getattr(case, "__name__", case),
)
def test_ray_two_nodes_make_the_files_that_local_workers_make(tmp_path, cluster, corpus, write, written):
    mixture, overrides = write(tmp_path, corpus, written)
    local, ray = (
        runs.run_mixture(mixture, output=tmp_path / name, overrides=overrides, make_engine=engine)
        for name, engine in (("local", runs.InProcess), ("ray", _on(cluster)))
    )
    assert ray.snapshot == local.snapshot
    assert sorted(ray.watcher.steps) == sorted(local.watcher.steps)
    assert ray.report.get("thresholds") == local.report.get("thresholds")
    assert [warning.kind for warning in ray.warnings] == [warning.kind for warning in local.warnings]
    files = {path.relative_to(tmp_path / "local") for path in (tmp_path / "local/documents").rglob("*") if path.is_file()}
    assert all((tmp_path / "ray" / path).read_bytes() == (tmp_path / "local" / path).read_bytes() for path in files)
    assert len(files) > 2 or write is not _of_documents


_COMPANY = '''
import pyarrow as pa
import pyarrow.compute as pc
from datapipe.stage import Map
from my_company.suffix import SUFFIX

class Append(Map):
    """Appends a word to every text."""

    def process(self, batch):
        joined = (batch.texts, pa.scalar(SUFFIX, pa.large_string()), pa.scalar("", pa.large_string()))
        return {"text": pc.binary_join_element_wise(*joined)}

def append(record, times: int = 1):
    return record["text"] + SUFFIX * times
'''


def test_ray_user_stage_travels_with_the_task(tmp_path, cluster, monkeypatch):
    package = tmp_path / "code" / "my_company"
    package.mkdir(parents=True)
    for name, code in (("__init__", ""), ("suffix", 'SUFFIX = " indeed"\n'), ("clean", _COMPANY)):
        (package / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(package.parent))
    mixture, own = _web(tmp_path), '["my_company.clean:Append", {"my_company.clean:append": {times: 2}}]'
    mixture.write_text(mixture.read_text().replace("[normalize.unicode]", own))
    total = runs.run_mixture(mixture, make_engine=_on(cluster)).report["total"]
    assert total["kept_bytes"] == total["bytes"] + 30 * 3 * len(" indeed")


def test_ray_leaves_a_node_alone_that_differs_and_runs_the_tasks_of_one_that_ends_elsewhere(tmp_path, cluster):
    """One node has another numba; a second one like it joins during the run; a third one gets SIGTERM while it works."""
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib import metadata\n"
        "version = metadata.version\n"
        "metadata.version = lambda name: '0.1' if name == 'numba' else version(name)\n"
    )
    path = {"PYTHONPATH": str(tmp_path)}  # its datapipe is the driver's: Ray gives workers the paths of the driver
    differ, ends = [cluster.add_node(num_cpus=1, env_vars=path)], cluster.add_node(num_cpus=1)
    engines, news = [], []

    def make(root, request):
        engines.append(ray_engine.RayEngine(root, request, cluster.address))
        return engines[0]

    def is_told(node_id: str) -> bool:
        engines[0].messages()
        news.extend(engines[0].take_lines())
        return any(node_id[:12] in line for line in news)

    def change_nodes(record) -> None:
        if len(watcher.records) == 2:
            ends.all_processes["raylet"][0].process.terminate()
            differ.append(cluster.add_node(num_cpus=1, env_vars=path))
            wait_until(lambda: is_told(differ[1].node_id), "the answer of the node that joined")

    watcher = runs.Watcher(on_commit=change_nodes)
    mixture = _web(tmp_path, 16, "tokenizer: none\n")
    overrides = [f"execution.{option}" for option in ("max_retries=0", "max_infrastructure_retries=0", "split_bytes=16KiB")]
    local = runs.run_mixture(mixture, output=tmp_path / "local", make_engine=runs.InProcess, overrides=overrides)
    try:
        ray = runs.run_mixture(mixture, make_engine=make, watcher=watcher, overrides=overrides)
    finally:
        for node in differ:
            cluster.remove_node(node)
    assert ray.snapshot == local.snapshot
    told = [line for line in [*watcher.lines, *news] if "gets no tasks: it has numba 0.1, and the driver has 0." in line]
    assert sorted(line.split()[2] for line in told) == sorted(node.node_id[:12] for node in differ)
    assert not list((tmp_path / "out/work").glob("probe-*"))


def test_ray_node_that_compiles_kernels_gets_no_tasks_and_one_whose_kernels_fail_is_named(tmp_path, cluster, monkeypatch):
    """It joins during the run, with an empty cache."""

    def compile_slowly(names: list[str], shared: list) -> list[str]:
        import time
        from pathlib import Path

        while not Path(go).exists():
            time.sleep(0.1)
        return ["its kernels do not compile: words.find_words: TypingError"]

    go, engines, nodes, news, added = str(tmp_path / "go"), [], set[str](), [], []
    monkeypatch.setattr("datapipe.engine.cluster.ray_nodes.compile_there", compile_slowly)

    def make(root, request):
        engines.append(ray_engine.RayEngine(root, request, cluster.address))
        return engines[0]

    def is_told(text: str) -> bool:
        engines[0].messages()
        news.extend(engines[0].take_lines())
        return any(text in line and added[0].node_id[:12] in line for line in news)

    def on_commit(record) -> None:
        if len(watcher.records) == 2:
            added.append(cluster.add_node(num_cpus=1, env_vars={"XDG_CACHE_HOME": str(tmp_path / "cold")}))
            wait_until(lambda: is_told("compiling "), "the answer of the node that joined")
        if len(watcher.records) == 12:
            Path(go).touch()
            wait_until(lambda: is_told("gets no tasks: its kernels do not compile"), "the error of its kernels")

    def observe(event: Event) -> None:
        if isinstance(event, Committed):
            nodes.update(attempt.node.partition(" ")[0] for attempt in event.attempts)
        if isinstance(event, AttemptEvent) and event.attempt.failure is not None:
            returned.append(event.attempt.failure)
        watcher(event)

    returned, watcher = [], runs.Watcher(on_commit=on_commit)
    overrides = [f"execution.{option}" for option in ("max_retries=0", "max_infrastructure_retries=0", "split_bytes=16KiB")]
    mixture = _web(tmp_path, 16, "tokenizer: none\n")
    try:
        done = runs.run_mixture(mixture, make_engine=make, watcher=watcher, overrides=overrides, observer=observe)
    finally:
        for node in added:
            cluster.remove_node(node)
    assert nodes and added[0].node_id[:12] not in nodes
    assert watcher.retries == [] and {failure.kind for failure in returned} <= {"node"}
    local = runs.run_mixture(mixture, output=tmp_path / "local", make_engine=runs.InProcess, overrides=overrides)
    assert done.snapshot == local.snapshot


def test_ray_node_with_an_empty_cache_gets_its_kernels_from_one_like_it(tmp_path, cluster):
    engines, added, news = [], [], []

    def make(root, request):
        engines.append(ray_engine.RayEngine(root, request, cluster.address))
        return engines[0]

    def is_told(text: str) -> bool:
        engines[0].messages()
        news.extend(engines[0].take_lines())
        return any(text in line and added[0].node_id[:12] in line for line in news)

    def on_commit(record) -> None:
        if len(watcher.records) == 2:
            added.append(cluster.add_node(num_cpus=1, env_vars={"XDG_CACHE_HOME": str(tmp_path / "cold")}))
            wait_until(lambda: is_told("compiled kernels on 1 node"), "the kernels")
            slots.append(engines[0].slots)

    slots, watcher = [], runs.Watcher(on_commit=on_commit)
    try:
        runs.run_mixture(_web(tmp_path, 4, "tokenizer: none\n"), make_engine=make, watcher=watcher)
    finally:
        for node in added:
            cluster.remove_node(node)
    assert slots == [3]
    sent = list((tmp_path / "cold").rglob("*.bin"))
    kernels = [path for path in sent if path.parent.parent == tmp_path / "cold/datapipe/kernels"]
    assert kernels and all(
        path.read_bytes() == (kernels_folder() / path.parent.name / path.name).read_bytes() for path in kernels
    )


def test_ray_killed_worker_process_costs_its_task_alone(tmp_path, mixture, cluster):
    killed: list[int] = []

    def kill_one(record) -> None:
        victims = [process_id for process_id in ray_workers() if is_running(process_id)]
        if len(killed) < 3 and victims:
            os.kill(victims[0], signal.SIGKILL)
            killed.append(victims[0])

    local = runs.run_mixture(mixture, output=tmp_path / "local", make_engine=runs.InProcess)
    watcher = runs.Watcher(on_commit=kill_one)
    ray = runs.run_mixture(mixture, output=tmp_path / "ray", make_engine=_on(cluster), watcher=watcher)
    assert killed
    assert ray.snapshot == local.snapshot


def test_ray_crashing_document_is_named_or_left_out_as_by_local_workers(tmp_path, cluster, hostile):
    mixture = hostile({3: "SEGFAULT", 18: "RAISE-IT"})
    with pytest.raises(DatapipeError, match=r"document doc-5-3 \(\w+/web\.jsonl:\d+\) crashes hostile_\w+:Hostile: SIGSEGV"):
        runs.run_mixture(mixture, output=tmp_path / "named", make_engine=_on(cluster))
    assert "in process" in (tmp_path / "named/work/failure.txt").read_text()
    option = ["execution.on_crash=quarantine"]
    ray = runs.run_mixture(mixture, output=tmp_path / "ray", overrides=option, make_engine=_on(cluster))
    local = runs.run_mixture(mixture, output=tmp_path / "local", overrides=option)
    assert ray.report["total"]["documents"]["quarantined"] == 2
    assert ray.snapshot == local.snapshot


def test_ray_supervisor_that_is_stopped_is_overtaken_by_a_second_attempt_and_ended(tmp_path, cluster, monkeypatch, hostile):
    monkeypatch.setattr("datapipe.engine.attempts.SILENCE_S", 5.0)
    mixture = hostile({18: "STOP-SUPERVISOR"})
    done = runs.run_mixture(mixture, make_engine=_on(cluster))
    assert (tmp_path / "was-stopped").exists()
    assert done.watcher.retries == []
    assert done.report["second_attempts"]["web/read"]["won"] >= 1  # on a busy machine others may be overtaken too
    assert done.snapshot == runs.run_mixture(mixture, output=tmp_path / "local", make_engine=runs.InProcess).snapshot
    wait_until(lambda: not ray_workers(), "the end of the stopped supervisor")


@pytest.mark.slow
def test_ray_input_that_changes_during_the_run_is_named_and_nothing_of_it_is_committed(tmp_path, cluster):
    mixture, last = _web(tmp_path, 12), tmp_path / "web/11.jsonl"
    overrides = ["execution.split_bytes=16KiB"]
    tasks = planned(load_mixture(mixture, overrides))[1].pending()
    of_last = {task.fingerprint for task in tasks if any(split.file.path == last.name for split in task.splits)}
    assert of_last.isdisjoint(task.fingerprint for task in tasks[:6])  # not submitted when the first task is committed

    def overwrite(record) -> None:
        before = last.stat()
        if len(watcher.records) == 1:
            last.write_bytes(last.read_bytes().replace(b"a", b"e"))
            os.utime(last, ns=(before.st_atime_ns, before.st_mtime_ns))

    watcher = runs.Watcher(on_commit=overwrite)
    with pytest.raises(UserError, match=r"web/11\.jsonl changed while the run read it"):
        runs.run_mixture(mixture, make_engine=_on(cluster), watcher=watcher, overrides=overrides)
    assert watcher.records and watcher.retries == []
    assert of_last.isdisjoint(record.fingerprint for record in watcher.records)
    assert of_last.isdisjoint(stored_records(tmp_path / "out"))


def test_ray_task_that_no_node_can_run_is_reported_and_ends_the_run(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr("datapipe.engine.driver.SILENCE_S", 0.5)
    mixture = _web(tmp_path)
    watcher = runs.Watcher()
    overrides = ["execution.resources={normalize.unicode: {num_gpus: 1}}", "execution.stall_s=3"]
    with pytest.raises(UserError, match=r"waits for a node with 1 CPU, 1 GPU: the cluster has nodes with 1 CPU, 0 GPU\."):
        runs.run_mixture(mixture, make_engine=_on(cluster), watcher=watcher, overrides=overrides)
    assert any(line.startswith("no report for") and "waiting for a node with" in line for line in watcher.lines)


def test_ray_tasks_run_on_the_nodes_with_the_labels_of_the_placement(tmp_path, cluster):
    labelled = cluster.add_node(num_cpus=1, labels={"pool": "batch"})
    nodes: set[str] = set()

    def observe(event: Event) -> None:
        if isinstance(event, Committed):
            nodes.update(attempt.node for attempt in event.attempts)

    mixture = _web(tmp_path, num_files=4)
    try:
        overrides = ["execution.placement={pool: batch}"]
        placed = runs.run_mixture(mixture, make_engine=_on(cluster), observer=observe, overrides=overrides)
        assert [node.partition(" ")[0] for node in nodes] == [labelled.node_id[:12]]
        assert placed.snapshot == runs.run_mixture(mixture, output=tmp_path / "local", make_engine=runs.InProcess).snapshot
        overrides = ["execution.placement={pool: none, zone: a}", "execution.stall_s=3"]
        with pytest.raises(DatapipeError, match=r"labels of execution\.placement \(pool: none, zone: a\) is alive"):
            runs.run_mixture(mixture, output=tmp_path / "other", make_engine=_on(cluster), overrides=overrides)
    finally:
        cluster.remove_node(labelled)


def test_ray_run_that_is_terminated_explains_how_to_go_on(tmp_path, mixture, cluster):
    driver = start(["run", str(mixture), "--engine", "ray", "--address", cluster.address])
    wait_until(lambda: any(tmp_path.glob("out/work/ledger/*")) or driver.poll() is not None, "a commit")
    driver.terminate()
    _, errors = driver.communicate()
    assert driver.returncode == 130, errors
    assert "Resume with the same command" in errors


def test_ray_address_that_no_one_answers_is_the_users_error(mixture):
    """In its own process: Ray may end the process that finds no cluster."""
    done = run(["run", str(mixture), "--engine", "ray", "--address", "127.0.0.1:1"])
    assert done.returncode == 2
    assert "127.0.0.1:1" in done.stderr


def test_ray_output_that_a_node_does_not_see_is_the_users_error(tmp_path, cluster, mixture, monkeypatch):
    def expected(**facts) -> Expectation:
        return Expectation(**facts | {"inputs": (str(tmp_path / "not-there"),)})

    monkeypatch.setattr("datapipe.engine.cluster.ray_nodes.Expectation", expected)
    with pytest.raises(UserError, match=r"does not see .*not-there"):
        runs.run_mixture(mixture, make_engine=_on(cluster))


def test_ray_nodes_that_share_no_disk_run_a_mixture_from_and_to_a_store(tmp_path, monkeypatch):
    """Each node has its own network and files, and one of them cannot reach the store."""
    with separate_nodes(tmp_path, [tmp_path]) as nodes, object_store("corpus", nodes.store_host) as query:
        for sees_store in (True, True, False):
            lost = nodes.add(sees_store=sees_store)
        nodes.wait()
        for number in range(4):
            path = corpora.write_jsonl(tmp_path / f"web/{number}.jsonl", corpora.documents(number, 60))
            Root(f"s3://corpus/web{query}").write_atomic(path.name, path.read_bytes())
        stages = "stages: [normalize.unicode, dedup.exact]"
        sources = [
            f"  web:\n    path: {where}/*.jsonl{end}\n" for where, end in (("s3://corpus/web", query), (tmp_path / "web", ""))
        ]
        tail = "tokenizer: none\nexecution: {split_bytes: 16KiB, stall_s: 60}\n"  # a worker that never begins costs a minute
        there, here = (runs.write_mixture(tmp_path, source, stages, tail, f"{n}.yaml") for n, source in enumerate(sources))
        watcher = runs.Watcher()
        done = runs.run_mixture(
            there,
            output=f"s3://corpus/out{query}",
            make_engine=lambda root, request: ray_engine.RayEngine(root, request, nodes.address),
            watcher=watcher,
        )
        local = runs.run_mixture(here, make_engine=runs.InProcess)
        assert done.snapshot == local.snapshot
        told = [line for line in watcher.lines if "gets no tasks" in line]
        assert told and all(f"({lost}) gets no tasks: it " in line for line in told)  # slow at first, then without the store


def test_ray_nodes_without_the_files_of_stages_get_them_by_way_of_the_output(tmp_path, monkeypatch):
    """One lies on the disk of the driver, one on a server that only the driver reaches; the cache of each node is empty."""
    content = Recipe(labels=("en", "de"), scale=5.0).content()
    (tmp_path / "lid.bin").write_bytes(content)
    own_cache = file_cache.folder()
    monkeypatch.setattr(file_cache, "cache_home", lambda: tmp_path / "home")
    with (
        separate_nodes(tmp_path, [tmp_path, own_cache]) as nodes,
        object_store("corpus", nodes.store_host) as query,
        web_server() as web,
    ):
        web.files["/words.txt"] = b"the\n"
        for _ in range(2):
            nodes.add()
        nodes.wait()
        documents = corpora.documents(1, 200)
        corpora.write_jsonl(tmp_path / "web/0.jsonl", documents)
        Root(f"s3://corpus/web{query}").write_atomic("0.jsonl", corpora.jsonl(documents))
        stages = (
            f"stages:\n  - filter.language: {{model: {tmp_path}/lid.bin, keep: [en], as: own}}\n"
            f"  - filter.toxicity: {{lists: {{en: '{web.url('/words.txt')}'}}, drop_by_list: true}}\n"
        )
        tail = "tokenizer: none\nexecution: {split_bytes: 16KiB, stall_s: 60}\n"
        there = runs.write_mixture(tmp_path, f"  web:\n    path: s3://corpus/web/*.jsonl{query}\n", stages, tail, "there.yaml")
        here = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/web/*.jsonl\n", stages, tail, "here.yaml")
        watcher = runs.Watcher()
        done = runs.run_mixture(
            there,
            output=f"s3://corpus/out{query}",
            make_engine=lambda root, request: ray_engine.RayEngine(root, request, nodes.address),
            watcher=watcher,
        )
        local = runs.run_mixture(here, make_engine=runs.InProcess)
        assert 0 < done.report["total"]["kept_bytes"] < done.report["total"]["bytes"]
        assert done.snapshot.shards == local.snapshot.shards
        assert watcher.retries == []
        stored = [path.rpartition("/")[2] for path, _ in Root(f"s3://corpus/out{query}").list_files("work/files")]
        assert sorted(stored) == ["lid.bin", "words.txt"]
