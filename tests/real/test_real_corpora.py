"""A mixture over some 40 MB of real prose, web pages and code, in several formats and compressions, on every engine."""

from pathlib import Path

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
import pytest
import zstandard

from datapipe.snapshots.verify import verify_snapshot
from datapipe.storage.root import Root
from tests.support import runs
from tests.support.late_import import late_import

ray_engine = late_import("datapipe.engine.ray")

pytestmark = [pytest.mark.real, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

STAGES = """
stages:
  - normalize.unicode
  - filter.language: {keep: [en]}
  - filter.gopher_repetition: {mode: tag}
  - filter.gopher_quality
  - dedup.exact
  - dedup.minhash
  - redact.pii
"""

TAIL = """
validation: 1%
max_quarantined: 0.1%
tokenizer:
  train: {vocab_size: 16000, sample_bytes: 4MiB}
pack: {sequence_length: 2048}
shards: {target_bytes: 4MiB}
execution: {split_bytes: 4MiB, bucket_bytes: 4MiB}
"""


def write_real_mixture(folder: Path, data: Path) -> Path:
    """A mixture over the real corpora; two of them are rewritten under `folder`, as plain JSONL and as Parquet."""
    unpacked = zstandard.ZstdDecompressor()
    with open(data / "prose/govuk_commoncrawl_wet.jsonl.zst", "rb") as packed:
        (folder / "wet.jsonl").write_bytes(unpacked.stream_reader(packed).read())
    with pa.input_stream(str(data / "prose/govuk_news.jsonl.zst"), compression="zstd") as news:
        pq.write_table(pj.read_json(news), folder / "news.parquet", row_group_size=200)
    sources = f"""
  prose:
    path: [{data}/prose/novels.jsonl.zst, {data}/prose/rust_book.jsonl.zst, {folder}/news.parquet]
    weight: 0.4
  plain:
    path: ["{data}/prose/wikitext-2.*.txt.zst", {data}/prose/tinyshakespeare.txt.zst]
    weight: 0.1
    max_epochs: 2
    stages: [normalize.unicode, dedup.exact]     # each file is a book: longer than Gopher's 100,000 words
  web:
    path: [{data}/prose/cleaneval_web.jsonl.zst, {data}/prose/c4_theguardian.jsonl.gz, {folder}/wet.jsonl]
    weight: 0.3
  code:
    path: {data}/code/humaneval_x_*.jsonl.gz
    text: prompt
    id: task_id
    weight: 0.1
    stages: [dedup.exact, dedup.minhash]
  functions:
    path: {data}/code/codexglue_concode_dev.jsonl.zst
    text: code
    weight: 0.1
    stages: [dedup.exact]
"""
    return runs.write_mixture(folder, sources, stages=STAGES, tail=TAIL)


def test_real_mixture_gives_the_same_shards_on_every_engine(tmp_path, real_data):
    from ray.cluster_utils import Cluster

    path = write_real_mixture(tmp_path, real_data)
    one = runs.run_mixture(path, workers=1, output=tmp_path / "one")
    two = runs.run_mixture(path, workers=2, output=tmp_path / "two")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        ray = runs.run_mixture(
            path,
            output=tmp_path / "ray",
            make_engine=lambda root, request: ray_engine.RayEngine(root, request, cluster.address),
        )
    finally:
        cluster.shutdown()
    assert two.snapshot == one.snapshot
    assert ray.snapshot == one.snapshot
    assert verify_snapshot(Root(str(tmp_path / "ray")), ray.snapshot) == []
    for source, entry in one.report["sources"].items():
        documents = entry["documents"]
        assert documents["read"] > 0, source
        assert documents["read"] == documents["kept"] + sum(documents["dropped"].values()) + documents["quarantined"]
        assert entry == {**two.report["sources"][source], "steps": entry["steps"]}
    assert one.report["total"]["bytes"] > 20_000_000
    assert one.report["peak_worker_bytes"] < 1_500_000_000
