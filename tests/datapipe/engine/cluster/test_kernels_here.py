"""What a node does about kernels before it gets tasks, in processes with a cache each."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from datapipe.kernels import IS_COMPILED

pytestmark = [pytest.mark.medium, pytest.mark.skipif(not IS_COMPILED, reason="nothing is compiled with NUMBA_DISABLE_JIT")]

_DATAPIPE = Path(__file__).resolve().parents[4]
_KERNELS = """
from datapipe.kernels import kernel
from datapipe.kernels.types import Int64sOut

@kernel
def negate(out: Int64sOut) -> None:
    for i in range(len(out)):
        out[i] = {value}
"""
_NAMES = ["small_kernels:negate"]
_HERE = f"from datapipe.engine.cluster.kernels_here import compile_here, num_missing\nnames = {_NAMES}\n"
_COMPILE = f"{_HERE}print(num_missing(names), compile_here(names), num_missing(names))"


@dataclass(frozen=True)
class Machine:
    """A machine with a module of one kernel; `home` is its cache."""

    folder: Path
    home: Path

    def start(self, code: str, *arguments: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(self.folder), str(_DATAPIPE)])
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.home), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        command, pipe = [sys.executable, "-c", code, *arguments], subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)

    def run(self, code: str, *arguments: str) -> str:
        with self.start(code, *arguments) as process:
            printed, _ = process.communicate()
        assert process.returncode == 0
        return printed.strip()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "small_kernels.py").write_text(_KERNELS.format(value="-out[i]"))
    return Machine(tmp_path, tmp_path / "cache")


@pytest.mark.slow
def test_node_with_an_empty_cache_compiles_once_and_lacks_nothing_then(machine: Machine) -> None:
    assert machine.run(_COMPILE) == "1 [] 0"
    assert machine.run(_COMPILE) == "0 [] 0"


def test_node_whose_kernels_do_not_compile_lacks_them_and_names_the_error(machine: Machine) -> None:
    (machine.folder / "small_kernels.py").write_text(_KERNELS.format(value="out.no_such_attribute"))
    printed = machine.run(_COMPILE)
    assert printed.startswith("1 [") and printed.endswith("] 1")
    assert "its kernels do not compile: small_kernels.negate: " in printed and "no_such_attribute" in printed


@pytest.mark.slow
def test_node_whose_cache_keeps_nothing_gets_tasks_at_once(tmp_path: Path, machine: Machine) -> None:
    (tmp_path / "file").touch()
    nowhere = Machine(machine.folder, tmp_path / "file")
    assert nowhere.run(f"{_HERE}print(num_missing(names))") == "0"


_SEND = f"""
import pickle, sys
from datapipe.engine.cluster.kernels_here import shared_from_here
pickle.dump(shared_from_here({_NAMES}), open(sys.argv[1], "wb"))
"""
_TAKE = f"""{_HERE}
import pickle, sys
from dataclasses import replace
shared = pickle.load(open(sys.argv[1], "rb"))
damaged = replace(shared, files={{name: content[:-1] for name, content in shared.files.items()}})
of_another = replace(shared, version_key="python3.11.7-another-processor")
print([bool(compile_here(names, each)) for each in (damaged, of_another, shared)], num_missing(names))
"""


@pytest.mark.slow
def test_node_takes_kernels_of_a_machine_like_it_whole_and_compiles_all_others(tmp_path: Path, machine: Machine) -> None:
    """The node has no compiler, so that it lacks what it does not take: a damaged file, and those of another processor."""
    machine.run(_COMPILE)
    machine.run(_SEND, str(tmp_path / "sent"))
    node = Machine(tmp_path / "node", tmp_path / "node" / "cache")
    node.folder.mkdir()
    (node.folder / "numba.py").write_text("raise ImportError('no compiler')")
    (node.folder / "small_kernels.py").write_bytes((machine.folder / "small_kernels.py").read_bytes())
    assert node.run(_TAKE, str(tmp_path / "sent")) == "[True, True, False] 0"
    (node.folder / "numba.py").unlink()
    call = "import numpy as np\nfrom small_kernels import negate\nvalues = np.array([1, 2])\nnegate(values)\nprint(*values)"
    assert node.run(call) == "-1 -2"


@pytest.mark.slow
def test_node_waits_for_a_kernel_that_another_process_compiles_and_compiles_it_where_that_is_killed(machine: Machine) -> None:
    hold = (
        "import sys\nfrom small_kernels import negate\n"
        "with negate.entry.lock():\n    print('held', flush=True)\n    sys.stdin.read()"
    )
    with machine.start(hold) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        begin = f"{_HERE}print(num_missing(names), flush=True)\nprint(compile_here(names), num_missing(names))"
        with machine.start(begin) as waiting:
            assert waiting.stdout is not None
            assert waiting.stdout.readline() == "1\n"
            holder.kill()
            assert waiting.stdout.readline() == "[] 0\n"
