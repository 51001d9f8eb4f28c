"""What is asked of a node of Ray that has no datapipe, or another one."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.support.late_import import late_import

ray_nodes = late_import("datapipe.engine.cluster.ray_nodes")

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("datapipe", "ModuleNotFoundError"),
        ("datapipe.engine.cluster", "ModuleNotFoundError"),  # an older one
        ("numba", "UnpicklingError"),  # no lack by itself, but the question is not one of this datapipe
    ],
)
def test_node_without_the_datapipe_of_the_driver_can_say_so(module, told):
    """The question travels whole: a node that can import nothing of it answers."""
    from ray import cloudpickle

    script = f"""
        import pickle, sys
        sys.modules[{module!r}] = None
        print(*pickle.load(sys.stdin.buffer)(b"?", "n"))
    """
    question = cloudpickle.dumps(ray_nodes.question_that_travels())
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], input=question, capture_output=True, check=False)
    assert done.stdout.decode().startswith(f"it cannot run the datapipe of the driver: {told}: "), done.stderr.decode()
