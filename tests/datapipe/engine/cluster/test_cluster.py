"""The nodes of a cluster: what each lacks, the modules that they get, and which of them get tasks."""

import importlib
import os
import pickle
import random
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from datapipe.config.execution import ExecutionSpec
from datapipe.engine.cluster import on_node
from datapipe.engine.cluster.nodes import ASK_AGAIN_S, LEAVING_S, SLOW_S, Node, Nodes
from datapipe.engine.cluster.on_node import (
    Expectation,
    Order,
    install_modules,
    lacks_here,
    module_sources,
    other_versions,
    run_attempt,
    versions_here,
)
from datapipe.engine.ray import label_selector, lack_of
from datapipe.engine.workers import supervisor
from datapipe.records.names import ATTEMPTS
from datapipe.records.option_files import path_here, planned_file, put_into_output
from datapipe.records.outputs import ExchangeFile, TableFile
from datapipe.steps.merge import MergeTask
from datapipe.storage import file_cache
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.empty_tasks import sample

NODE = "n" * 56
NOT_THERE = TableFile(path="not/there.arrow", bytes=1, rows=1, checksum="", row_bytes=1)


@pytest.fixture
def expected(tmp_path) -> Expectation:
    root = Root(str(tmp_path / "out"))
    root.write_atomic("work/probe-1", b"datapipe")
    (tmp_path / "a.jsonl").write_text("{}\n")
    return Expectation(versions=versions_here(), output=root.url, probe="work/probe-1", inputs=(str(tmp_path / "a.jsonl"),))


def test_node_like_the_driver_lacks_nothing_and_writes_an_answer(expected):
    assert lacks_here(expected) == []
    root = Root(expected.output)
    assert [path for path, _ in root.list_files("")] == ["work/probe-1"]
    assert lacks_here(expected, NODE) == []
    assert root.exists(expected.answer(NODE))


def test_versions_that_differ_are_named_with_those_of_the_driver(expected):
    driver = {"Python": "3.12.1", "datapipe": "0.2.0", "numba": "0.61.0", "source of datapipe": "aa"}
    here = {"Python": "3.12.1", "datapipe": "0.1.0", "source of datapipe": "bb"}
    of_datapipe, of_numba = other_versions(driver, here)
    assert all(version in of_datapipe for version in ("datapipe", "0.1.0", "0.2.0"))
    assert all(version in of_numba for version in ("numba", "none", "0.61.0"))
    [of_source] = other_versions(driver, {**driver, "source of datapipe": "bb"})
    assert "source code" in of_source
    assert {"Python", "datapipe", "numba", "pyarrow"} < versions_here().keys()
    other = replace(expected, versions={**expected.versions, "numba": "0.1"}, probe="work/not-there")
    [looked_no_further] = lacks_here(other)
    assert "numba" in looked_no_further


def test_node_that_does_not_see_the_output_or_inputs_names_each(expected, tmp_path):
    (tmp_path / "elsewhere/work").mkdir(parents=True)
    [of_output] = lacks_here(replace(expected, output=str(tmp_path / "elsewhere")), NODE)
    assert f"{tmp_path}/elsewhere" in of_output
    told = lacks_here(replace(expected, inputs=(f"{tmp_path}/b.jsonl", *expected.inputs, f"{tmp_path}/c.jsonl")))
    assert [line.partition(": ")[0] for line in told] == [f"it does not see {tmp_path}/{name}.jsonl" for name in "bc"]


def test_node_gets_the_files_of_options_from_the_output_or_names_those_that_it_cannot_have(expected, tmp_path, monkeypatch):
    monkeypatch.setattr(file_cache, "cache_home", lambda: tmp_path / "home")
    names = ("edu.bin", "words.txt")
    for name in names:
        (tmp_path / name).write_text(name)
    files = [planned_file(tmp_path / name, name, "filter.toxicity") for name in names]
    put_into_output(files[:1], Root(expected.output))
    for name in names:
        (tmp_path / name).unlink()
    [lack] = lacks_here(replace(expected, files=tuple(files)))
    assert "words.txt (9 B), which filter.toxicity reads" in lack
    assert path_here(files[0], Root(expected.output)).read_text() == "edu.bin"


def _raising(error):
    def fails(*arguments):
        raise error

    return fails


@pytest.mark.parametrize(
    ("owner", "name", "value", "told"),
    [
        (Root, "write_atomic", _raising(OSError(30, "Read-only file system")), "Read-only file system"),
        (on_node, "free_bytes", lambda path: 0, "disk is full"),
        (on_node.tempfile, "gettempdir", _raising(FileNotFoundError(2, "none")), "no folder for temporary files"),
    ],
)
def test_node_on_which_nothing_can_be_written_reports_it(expected, monkeypatch, owner, name, value, told):
    monkeypatch.setattr(owner, name, value)
    [lack] = lacks_here(expected, NODE)
    assert told in lack


def _order(expected: Expectation, modules: dict[str, bytes], **task) -> Order:
    content = pickle.dumps(sample(**task))
    return Order(expectation=expected, task=content, label="web/sample", attempt="one", modules=modules, limits=ExecutionSpec())


def test_order_of_a_task_that_reads_as_many_files_as_one_may_stays_below_64_kb(expected):
    drawn = random.Random(7)
    folders = (
        f"{ATTEMPTS}/web.apply-dedup.minhash/{drawn.getrandbits(64):016x}-{drawn.getrandbits(48):012x}" for _ in range(512)
    )
    files = [
        ExchangeFile(
            path=f"{folder}/tokens-train.exchange",
            checksum=f"xxh3_128:{drawn.getrandbits(128):032x}",
            **{name: drawn.getrandbits(28) for name in ("rows", "bytes", "row_bytes", "runs")},
            **{name: drawn.getrandbits(64) for name in ("first", "last")},
        )
        for folder in folders
    ]
    task = MergeTask(step="web/pack.merge-1", seed=1, tables={"tokens": tuple(files)}, start=0, stop=1, limit_bytes=1)
    order = replace(_order(expected, {}), task=pickle.dumps(task))
    assert pickle.loads(zlib.decompress(order.to_bytes())) == order
    assert len(order.to_bytes()) < 64 << 10 < len(order.task)


def test_task_on_a_node_that_lacks_something_comes_back_with_that_and_a_report_before(expected, tmp_path, monkeypatch):
    reports = []
    order = _order(replace(expected, output=str(tmp_path / "elsewhere")), {})
    [told], record, failure = run_attempt(order, lambda report: reports.append(report) is None)
    assert f"{tmp_path}/elsewhere" in told
    assert (record, failure) == (None, None)
    assert [(report.number, report.message.attempt, report.process_id) for report in reports] == [(0, "one", os.getpid())]
    monkeypatch.setattr(on_node.tempfile, "tempdir", str(tmp_path / "not-there"))
    order = _order(expected, {"mine.py": b""})
    [told], record, _ = run_attempt(order, lambda report: True)
    assert record is None and "modules" in told


@pytest.mark.slow
@pytest.mark.parametrize("is_gone", [False, True])
def test_failure_on_a_node_that_lost_the_output_meanwhile_comes_with_what_it_lacks(expected, is_gone, monkeypatch):
    monkeypatch.setattr(supervisor, "_worker", None)
    order = _order(expected, {}, documents=(NOT_THERE,))

    def tell(report) -> bool:
        if is_gone and report.number:  # the node has been looked at
            Root(expected.output).delete(expected.probe)
        return True

    lacks, record, failure = run_attempt(order, tell)
    supervisor._worker[1].stop()
    assert record is None and failure is not None
    assert [expected.output in told for told in lacks] == [True] * is_gone


def test_shipped_modules_come_from_a_folder_that_no_one_else_can_write(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shipped_alone", raising=False)
    shipped = {"shipped_alone.py": b"VALUE = 41\n"}
    install_modules(shipped)
    import shipped_alone  # pyright: ignore[reportMissingImports]

    assert shipped_alone.VALUE == 41
    folder = Path(shipped_alone.__file__).parent
    assert str(folder) == sys.path[0]
    assert (folder.stat().st_mode & 0o077, folder.stat().st_uid) == (0, os.getuid())


def test_modules_in_a_folder_without_init_are_shipped_as_far_as_they_are_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bare_folder" / "inner").mkdir(parents=True)
    for name, text in (("words", "LEAST = 3\n"), ("mine", "from bare_folder.inner.words import LEAST\n"), ("other", "")):
        (tmp_path / "bare_folder" / "inner" / f"{name}.py").write_text(text)
    importlib.import_module("bare_folder.inner.mine")
    shipped = module_sources("bare_folder")
    assert set(shipped) == {"bare_folder/inner/mine.py", "bare_folder/inner/words.py"}
    assert shipped["bare_folder/inner/words.py"] == b"LEAST = 3\n"
    for name in [name for name in sys.modules if name.partition(".")[0] == "bare_folder"]:
        monkeypatch.delitem(sys.modules, name)


class _Case(Nodes):
    """Nodes named by one letter, with a clock that stands still but for `wait`."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(lambda: self.now)

    def shows(self, names: str, drained: str = "") -> str:
        """The names of the nodes that are to be asked."""
        nodes = [Node(node_id=name * 56, address="10.0.0.7", resources={"CPU": 2.0}) for name in names]
        return "".join(node_id[0] for node_id in self.see(nodes, [name * 56 for name in drained]))

    def answers(self, names: str, *lacks: str, num_missing: int = 0) -> None:
        for name in names:
            self.answer(name * 56, list(lacks), num_missing)

    def compiles(self, names: str, *lacks: str) -> None:
        for name in names:
            self.compiled(name * 56, list(lacks))

    @property
    def fitting(self) -> str:
        return "".join(node.node_id[0] for node in self.fit)


@pytest.fixture
def nodes() -> _Case:
    return _Case()


def test_nodes_of_one_address_are_asked_and_refused_by_their_ids(nodes):
    assert nodes.shows("ab") == "ab"
    assert [node_id[0] for node_id in nodes.excluded] == ["a", "b"]
    nodes.answers("a")
    nodes.answers("b", "it does not see s3://bucket/out")
    assert (nodes.fitting, [node_id[0] for node_id in nodes.excluded]) == ("a", ["b"])
    assert ["b" * 12 in line and "s3://bucket/out" in line for line in nodes.take_lines()] == [True]
    assert nodes.take_lines() == []


def test_node_that_joins_later_gets_no_tasks_before_its_answer(nodes):
    nodes.shows("a")
    nodes.answers("a")
    assert (nodes.shows("ab"), nodes.fitting) == ("b", "a")
    nodes.answers("b")
    assert (nodes.fitting, nodes.take_lines()) == ("ab", [])


def test_node_that_lacked_something_is_asked_again_after_a_pause_and_reported_once(nodes):
    for _ in range(3):
        assert [nodes.shows("a"), nodes.shows("a")] == ["a", ""]
        nodes.answers("a", "its disk is full: /tmp")
        nodes.now += ASK_AGAIN_S
    assert len(nodes.take_lines()) == 1
    nodes.answers("a")
    assert (nodes.fitting, len(nodes.take_lines()), nodes.shows("a")) == ("a", 1, "")


def test_node_that_does_not_answer_is_reported_and_gets_tasks_when_it_does(nodes):
    nodes.shows("a")
    nodes.now += SLOW_S
    nodes.shows("a")
    nodes.shows("a")
    assert len(nodes.take_lines()) == 1
    nodes.answers("a")
    assert nodes.fitting == "a"


def test_node_that_got_a_signal_to_end_gets_no_tasks_for_a_while_unless_there_is_no_other(nodes):
    nodes.shows("ab")
    nodes.answers("ab")
    nodes.mark_leaving("b" * 56)
    assert nodes.fitting == "a" and nodes.is_leaving("b" * 56)
    assert len(nodes.take_lines()) == 1
    nodes.shows("b")
    assert nodes.fitting == "b"
    nodes.shows("ab")
    nodes.answers("a")
    nodes.now += LEAVING_S
    assert nodes.fitting == "ab"


def test_node_that_is_drained_gets_no_tasks_even_where_there_is_no_other(nodes):
    nodes.shows("a")
    nodes.answers("a")
    for _ in range(2):
        nodes.shows("a", drained="a")
    assert nodes.fitting == "" and "aaaaaaaaaaaa" in nodes.why_none()
    assert len(nodes.take_lines()) == 1


def test_nodes_that_are_gone_are_forgotten_and_their_answers_passed_over(nodes):
    nodes.shows("a")
    nodes.shows("")
    nodes.answers("a", "it has numba 1, and the driver has 2")
    assert (nodes.num_alive, nodes.excluded, nodes.why_none()) == (0, [], "")
    assert len(nodes.take_lines()) == 1


def test_node_without_kernels_gets_tasks_once_they_are_compiled_while_others_work(nodes):
    nodes.shows("abc")
    nodes.answers("a")
    nodes.answers("bc", num_missing=43)
    assert (nodes.fitting, [node_id[0] for node_id in nodes.excluded], nodes.waits_for) == ("a", ["b", "c"], "")
    [line] = nodes.take_lines()
    assert line.startswith("compiling 43 kernels on 2 nodes, ") and "bbbbbbbbbbbb (10.0.0.7), cccccccccccc" in line
    nodes.now += 41
    nodes.compiles("b")
    assert (nodes.fitting, nodes.shows("abc"), {node_id[0] for node_id in nodes.compiling}) == ("ab", "", {"c"})
    [line] = nodes.take_lines()
    assert "1 node in 0:41" in line and "bbbbbbbbbbbb" in line
    assert nodes.take_lines() == []


def test_nodes_that_all_compile_are_what_a_run_waits_for(nodes):
    nodes.shows("ab")
    assert nodes.waits_for == ""
    nodes.answers("ab", num_missing=2)
    assert (nodes.fitting, nodes.waits_for) == ("", "kernels that 2 nodes compile")
    assert [line.endswith("it still compiles 2 kernels") for line in nodes.why_none().split(". ")] == [True, True]
    nodes.shows("b")
    assert nodes.waits_for == "kernels that 1 node compiles"
    nodes.compiles("ab")  # the one that is gone, too
    assert (nodes.fitting, nodes.waits_for) == ("b", "")


def test_node_whose_kernels_do_not_compile_is_named_once_left_alone_and_asked_again(nodes):
    why = "its kernels do not compile: words.find_words: TypingError"
    nodes.shows("ab")
    nodes.answers("a")
    lines = []
    for _ in range(3):
        nodes.answers("b", num_missing=1)
        lines += nodes.take_lines()
        nodes.compiles("b", why)
        lines += nodes.take_lines()
        assert (nodes.fitting, nodes.compiling) == ("a", set())
        nodes.now += ASK_AGAIN_S
        assert nodes.shows("ab") == "b"
    assert [line.partition(" ")[0] for line in lines] == ["compiling", "the"]
    assert "bbbbbbbbbbbb" in lines[1] and lines[1].endswith(f"gets no tasks: {why}")
    nodes.answers("b", num_missing=1)
    assert nodes.fitting == "a"
    nodes.compiles("b")
    assert nodes.fitting == "ab"
    [line] = nodes.take_lines()
    assert line.startswith("compiled kernels on 1 node ")


def test_node_that_loses_its_disk_while_it_compiles_gets_no_tasks_after_it(nodes):
    nodes.shows("a")
    nodes.answers("a", num_missing=1)
    nodes.answers("a", "its disk is full: /tmp")  # by a task that came there before its answer
    nodes.compiles("a")
    assert nodes.fitting == "" and "its disk is full" in nodes.why_none()


CPUS, GPUS = {"CPU": 8.0, "memory": 32e9}, {"CPU": 2.0, "GPU": 1.0, "memory": 64e9}


@pytest.mark.parametrize(
    ("reserved", "expected"),
    [
        ({"CPU": 8.0}, ""),
        ({"CPU": 1.0, "GPU": 0.0}, ""),
        ({"CPU": 2.0, "GPU": 1.0, "memory": 64e9}, ""),
        ({"CPU": 4.0, "GPU": 1.0}, "4 CPU, 1 GPU: the cluster has nodes with 2 CPU, 1 GPU and 8 CPU, 0 GPU"),
        ({"CPU": 1.0, "memory": 65e9}, "65.0 GB of memory: the cluster has nodes with 2 CPU, 64.0 GB"),
    ],
)
def test_lack_is_what_no_single_node_has(reserved, expected):
    lack = lack_of(reserved, [CPUS, GPUS])
    assert (expected in lack) if expected else lack == ""
    assert "none of the cluster is alive" in lack_of(reserved, [])


def test_nodes_that_get_no_tasks_are_reported_each_with_its_reason(nodes):
    assert nodes.why_none() == ""
    nodes.shows("abc")
    nodes.answers("a", "its disk is full: /tmp", "it does not see /out")
    nodes.answers("c")
    nodes.shows("abc", drained="c")
    why = nodes.why_none().split(". ")
    reasons = ("its disk is full: /tmp; it does not see /out", "it has not answered", "it got SIGTERM")
    assert [(line.split()[2][0], line.endswith(reason)) for line, reason in zip(why, reasons, strict=True)] == [
        ("a", True),
        ("b", True),
        ("c", True),
    ]


def test_node_takes_tasks_where_it_has_cores_and_every_label_of_the_placement():
    node = Node(node_id=NODE, address="10.0.0.1", resources={"CPU": 2.0}, labels={"pool": "batch", "zone": "a"})
    assert node.takes_tasks({})
    assert node.takes_tasks({"pool": "batch"})
    assert node.takes_tasks({"pool": "batch", "zone": "a"})
    assert not node.takes_tasks({"pool": "other"})
    assert not node.takes_tasks({"pool": "batch", "gpu": "none"})
    assert not replace(node, resources={}).takes_tasks({"pool": "batch"})
    assert not replace(node, labels={}).takes_tasks({"pool": "batch"})


def test_task_is_sent_to_nodes_with_the_labels_that_are_not_excluded():
    assert label_selector({}, []) == {}
    assert label_selector({"pool": "batch"}, []) == {"pool": "batch"}
    assert label_selector({"pool": "batch"}, ["a", "b"]) == {"pool": "batch", "ray.io/node-id": "!in(a,b)"}


def test_placement_is_in_no_fingerprint(tmp_path):
    corpora.write_jsonl(tmp_path / "web/a.jsonl", corpora.documents(1, 9))
    path = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web/*.jsonl}}", "stages: []", "tokenizer: none")
    first = runs.run_mixture(path, make_engine=runs.InProcess)
    again = runs.run_mixture(path, make_engine=runs.InProcess, overrides=["execution.placement={pool: batch}"])
    assert again.mixture.execution.placement == {"pool": "batch"}
    assert (again.watcher.steps, again.snapshot) == ([], first.snapshot)
