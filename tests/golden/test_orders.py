"""Numbers that must not change by accident: they decide every document key, every order and every saved loader state. Changing
one is a breaking change, and the commit has it."""

import numpy as np

from datapipe.columns import key_halves, key_matrix, make_keys
from datapipe.kernels.tokens.permute import permute
from datapipe.loader import Loader
from datapipe.rng import keyed_hash, seed_for
from datapipe.steps.splits import file_hash
from tests.support.snapshots import make_snapshot


def test_golden_seeds_by_name():
    assert seed_for(17, "loader", "web", 3) == 896575974008495346
    assert seed_for(17, "loader", "web", "3") == 13183951703788849112
    assert seed_for(0, "ab", "c") == 369849396270126542
    assert seed_for(0, "a", "bc") == 5642258186192259187


def test_golden_document_keys():
    assert file_hash("web", "a/b.jsonl") == 12407552374154720589
    keys = make_keys(file_hash("web", "a/b.jsonl"), np.array([0, 7, 1 << 40], np.uint64))
    assert bytes(key_matrix(keys)[1]).hex() == f"{12407552374154720589:016x}{7:016x}"
    assert keyed_hash(key_halves(keys), 5).tolist() == [9324764445833513882, 13396549401467307340, 8800057037489832282]


def test_golden_permutations():
    assert permute(9, 10, np.arange(10)).tolist() == [9, 8, 1, 0, 5, 6, 3, 7, 4, 2]
    assert permute(9, 70_000, np.arange(6)).tolist() == [68567, 8764, 68167, 68476, 52543, 56426]


def test_golden_order_of_a_mixture(tmp_path):
    make_snapshot(tmp_path, {"code": 12, "web": 31}, weights={"code": 3, "web": 7})
    loader = Loader(str(tmp_path), global_batch_size=8, fields=("input_ids", "sources"), prefetch=0)
    assert loader.batch(0)["sources"].tolist() == [1, 0, 1, 1, 0, 1, 1, 1]
    assert loader.batch(0)["input_ids"][:, 0].tolist() == [513, 1, 593, 417, 129, 257, 673, 337]
    assert loader.batch(1)["input_ids"][:, 0].tolist() == [145, 641, 657, 161, 577, 465, 177, 321]
    loader.close()


def rows_of(folder, steps, **options):
    """The first token of every row of some steps, which identifies the row."""
    loader = Loader(str(folder), global_batch_size=8, fields=("input_ids",), prefetch=0, **options)
    found = [loader.batch(step)["input_ids"][:, 0].tolist() for step in steps]
    loader.close()
    return found


def test_golden_order_in_windows_and_after_a_left_out_shard(tmp_path):
    make_snapshot(tmp_path, {"web": 60}, rows_per_shard=7)
    assert rows_of(tmp_path, [0, 9], window=2) == [
        [673, 817, 705, 721, 737, 833, 849, 801],
        [289, 273, 145, 209, 113, 33, 97, 1],
    ]
    assert rows_of(tmp_path, [0], window=2, skip_shards=["shards/web/train-0000-00003.arrow"]) == [
        [673, 817, 705, 721, 737, 833, 849, 801]
    ]


def test_golden_order_of_phases_and_caps(tmp_path):
    phases = [(16 * 10, {"code": 1, "web": 2}), (16 * 23, {"web": 1}), (None, {"code": 5, "web": 4})]
    make_snapshot(tmp_path, {"code": 9, "web": 31}, phases=phases, max_epochs={"code": 1}, exhausted="redistribute")
    assert rows_of(tmp_path, [0, 2, 5]) == [
        [465, 97, 545, 369, 113, 209, 625, 289],
        [305, 577, 337, 193, 321, 353, 561, 129],
        [625, 177, 609, 449, 289, 241, 353, 273],
    ]


def test_golden_order_after_other_weights(tmp_path):
    make_snapshot(tmp_path, {"code": 12, "web": 31}, weights={"code": 3, "web": 7})
    before = Loader(str(tmp_path), global_batch_size=8, prefetch=0)
    before.seek(2)
    after = Loader(str(tmp_path), global_batch_size=8, prefetch=0, mixture={"code": 1}, migrate=True)
    after.load_state_dict(before.state_dict())
    assert after.batch(2)["input_ids"][:, 0].tolist() == [17, 81, 33, 97, 49, 113, 65, 129]
