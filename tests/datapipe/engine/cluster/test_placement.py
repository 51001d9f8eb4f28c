"""Whether any node can run a task."""

from __future__ import annotations

import pytest

from datapipe.engine.cluster.placement import lack_of

CPUS, GPUS = {"CPU": 8.0, "memory": 32e9}, {"CPU": 2.0, "GPU": 1.0, "memory": 64e9}


@pytest.mark.parametrize(
    ("reserved", "expected"),
    [
        ({"CPU": 8.0}, ""),
        ({"CPU": 1.0, "GPU": 0.0}, ""),
        ({"CPU": 2.0, "GPU": 1.0, "memory": 64e9}, ""),
        ({"CPU": 4.0, "GPU": 1.0}, "a node with 4 CPU, 1 GPU: the cluster has nodes with 2 CPU, 1 GPU and 8 CPU, 0 GPU"),
        ({"CPU": 1.0, "memory": 65e9}, "65.0 GB of memory: the cluster has nodes with 2 CPU, 64.0 GB of memory and 8 CPU, 32"),
    ],
)
def test_lack_is_what_no_single_node_has(reserved, expected):
    lack = lack_of(reserved, [CPUS, GPUS])
    assert (expected in lack) if expected else lack == ""


def test_lack_of_a_cluster_whose_nodes_are_gone_is_a_node():
    assert lack_of({"CPU": 1.0}, []) == "a node: none of the cluster is alive"
