"""Compiled kernels are kept by the code that they reach, whole, and compiled once. The cache's files show what was compiled.

Each test makes its own package with small kernels, and runs it in other processes with its own cache:

    shop/helpers.py    @inline doubled
    shop/kernels.py    @kernel double (calls doubled), @kernel negate (calls nothing)
"""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from datapipe.kernels import IS_COMPILED

pytestmark = [pytest.mark.medium, pytest.mark.skipif(not IS_COMPILED, reason="nothing is compiled with NUMBA_DISABLE_JIT")]

_DATAPIPE = Path(__file__).resolve().parents[3]
_HELPERS = '''
from datapipe.kernels import inline

@inline
def doubled(value):
    """Twice the value."""
    return value * 2
'''
_KERNELS = '''
import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.types import Int64sOut
from shop.helpers import doubled

_TABLE = np.array([1, 2, 3])

@kernel
def double(out: Int64sOut) -> None:
    """Doubles."""
    for i in range(len(out)):
        out[i] = doubled(out[i])

@kernel
def negate(out: Int64sOut) -> None:
    """Negates."""
    for i in range(len(out)):
        out[i] = -out[i] * _TABLE[0]
'''
_INTRINSIC = """
from datapipe.kernels import intrinsic

def build_doubled(context, value):
    from llvmlite import ir

    def generate(context, builder, signature, arguments):
        return builder.mul(arguments[0], ir.Constant(ir.IntType(64), 2))

    return value(value), generate

@intrinsic(build_doubled)
def doubled(value):
    return value * 2
"""
_CALL_BOTH = """
import numpy as np
from shop.kernels import double, negate
values = np.array([1, 2, 3])
double(values)
negate(values)
print(*values)
"""
_COMPILE = """
from datapipe.kernels.compiling import compile_kernels
compile_kernels({names}, 2, lambda name, number, count: print(name))
"""


@dataclass(frozen=True)
class Shop:
    """The package in a folder, and a cache."""

    folder: Path
    home: Path

    def write(self, helpers: str = _HELPERS, kernels: str = _KERNELS) -> None:
        package = self.folder / "shop"
        package.mkdir(parents=True, exist_ok=True)
        for name, content in {"__init__": "", "helpers": helpers, "kernels": kernels}.items():
            (package / f"{name}.py").write_text(content)

    @property
    def environment(self) -> Mapping[str, str]:
        path = os.pathsep.join([str(self.folder), str(_DATAPIPE)])
        return {**os.environ, "XDG_CACHE_HOME": str(self.home), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)

    def run(self, code: str = _CALL_BOTH) -> str:
        with self.start(code) as process:
            said, _ = process.communicate()
        assert process.returncode == 0
        return said.strip()

    def compiled(self) -> tuple[int, int]:
        """How many forms of `double` and of `negate` were compiled and kept."""
        names = [path.name.partition("-")[0] for path in self.files(".bin")]
        return names.count("kernels.double"), names.count("kernels.negate")

    def files(self, suffix: str) -> list[Path]:
        return [path for path in self.home.rglob("*") if path.suffix == suffix]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path / "first", tmp_path / "cache")
    made.write()
    return made


@pytest.fixture(scope="module")
def full_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has both kernels."""
    folder = tmp_path_factory.mktemp("full")
    made = Shop(folder / "first", folder / "cache")
    made.write()
    assert made.run() == "-2 -4 -6"
    assert made.compiled() == (1, 1)
    return made.home


@pytest.fixture
def stocked(shop: Shop, full_cache: Path) -> Shop:
    """With both kernels in the cache."""
    shutil.copytree(full_cache, shop.home)
    return shop


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ((_HELPERS, _KERNELS), (_HELPERS, f"# A line more.\n\n{_KERNELS}".replace("Doubles.", "Makes twice as much.")), (0, 0)),
        ((_HELPERS, _KERNELS), (_HELPERS.replace("Twice the value", "The value, two times"), _KERNELS), (0, 0)),
        ((_HELPERS, _KERNELS), (_HELPERS.replace("value * 2", "value * 3"), _KERNELS), (1, 0)),
        ((_HELPERS, _KERNELS), (_HELPERS, _KERNELS.replace("[1, 2, 3]", "[5, 2, 3]")), (0, 1)),
        ((_INTRINSIC, _KERNELS), (_INTRINSIC.replace("64), 2)", "64), 3)"), _KERNELS), (1, 0)),
    ],
    ids=["comments", "docstring of a helper", "a helper in another file", "a table", "instructions of an intrinsic"],
)
def test_cache_change_makes_other_files_of_the_kernels_that_reach_it_alone(
    shop: Shop, before: tuple[str, str], after: tuple[str, str], changed: tuple[int, int]
) -> None:
    files = []
    for helpers, kernels in (before, after):
        shop.write(helpers, kernels)
        files.append(shop.run("from shop.kernels import double, negate\nprint(double.entry.path, negate.entry.path)").split())
    assert tuple(int(one != other) for one, other in zip(*files, strict=True)) == changed


@pytest.mark.slow
def test_cache_second_installation_compiles_nothing(stocked: Shop, tmp_path: Path) -> None:
    second = Shop(tmp_path / "second", stocked.home)
    second.write()
    assert second.run() == "-2 -4 -6"
    assert second.compiled() == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_cache_damaged_file_is_compiled_again(stocked: Shop, damage) -> None:
    for path in stocked.files(".bin"):
        path.write_bytes(damage(path.read_bytes()))
    assert stocked.run() == "-2 -4 -6"
    before = [path.read_bytes() for path in stocked.files(".bin")]
    assert stocked.run() == "-2 -4 -6"
    assert [path.read_bytes() for path in stocked.files(".bin")] == before


@pytest.mark.slow
def test_compile_kernels_compiles_named_kernels_alone_and_once(shop: Shop) -> None:
    code = _COMPILE.format(names=["shop.kernels:negate", "shop.helpers:doubled"])
    assert [shop.run(code) for _ in range(2)] == ["kernels.negate", ""]
    assert shop.compiled() == (0, 1)


@pytest.mark.slow
def test_kernels_are_loaded_in_many_threads_at_once_without_what_compiles_them(stocked: Shop) -> None:
    code = """
        import sys
        from concurrent.futures import ThreadPoolExecutor
        from threading import Barrier
        import numpy as np
        from datapipe.kernels import import_runtime
        from shop.kernels import double, negate
        sys.setswitchinterval(1e-6)
        begun = Barrier(8)
        def use(number):
            begun.wait()
            import_runtime()
            out = np.full(3, number)
            double(out)
            negate(out)
            return int(out[0])
        with ThreadPoolExecutor(8) as threads:
            print(list(threads.map(use, range(8))), "numba.np.npyimpl" in sys.modules)
    """
    assert stocked.run(code) == "[0, -2, -4, -6, -8, -10, -12, -14] False"


@pytest.mark.slow
def test_compile_kernels_names_those_that_do_not_compile(shop: Shop) -> None:
    shop.write(helpers=_HELPERS.replace("value * 2", "value.no_such_attribute"))
    code = """
        from datapipe.errors import DatapipeError
        from datapipe.kernels.compiling import compile_kernels
        try:
            compile_kernels(["shop.kernels:double", "shop.kernels:negate"], 2, lambda name, number, count: None)
        except DatapipeError as error:
            print("kernels.double" in str(error), "kernels.negate" in str(error))
    """
    assert shop.run(code) == "True False"
    assert shop.compiled() == (0, 1)


_HOLD = """
import sys
from shop.kernels import double
with double.entry.lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def _held(shop: Shop, code: str = _HOLD) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, env=shop.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


_COUNTING = """
import numpy as np
from numba.core.event import install_recorder
from shop.kernels import double
values = np.array([1])
with install_recorder("numba:compile") as recorder:
    double(values)
print(*values, len(recorder.buffer) > 0)
"""


@pytest.mark.slow
def test_cache_two_processes_that_need_one_kernel_compile_it_once(shop: Shop) -> None:
    holder = _held(shop)
    processes = [shop.start(_COUNTING) for _ in range(2)]  # both wait for the lock, whichever comes first to it
    holder.communicate("go")
    assert sorted(process.communicate()[0] for process in processes) == ["2 False\n", "2 True\n"]


@pytest.mark.slow
def test_cache_compiler_that_is_killed_leaves_nothing_and_frees_its_kernel(shop: Shop) -> None:
    writing = _HOLD.replace("    print", "    double.entry.path.with_suffix('.0.tmp').write_bytes(b'half')\n    print")
    holder = _held(shop, writing)
    waiting = shop.start(_CALL_BOTH)
    holder.kill()
    holder.communicate()
    assert waiting.communicate()[0].strip() == "-2 -4 -6"
    assert shop.compiled() == (1, 1)


@pytest.mark.slow
def test_compilation_that_is_closed_at_once_leaves_whole_files_and_no_process(shop: Shop) -> None:
    code = """
        from pathlib import Path
        from datapipe.kernels.compiling import Compilation
        with Compilation(["shop.kernels:double", "shop.kernels:negate"], 2, lambda *told: None):
            pass
        print(*[path.read_text() for path in Path("/proc/self/task").glob("*/children")], "left")
    """
    assert shop.run(code) == "left"
    assert shop.run() == "-2 -4 -6"
    assert shop.compiled() == (1, 1)


@pytest.mark.slow
def test_remove_unused_deletes_kernels_that_were_not_loaded(stocked: Shop) -> None:
    other = stocked.home / "datapipe" / "kernels" / "python3.10-numpy1"
    other.mkdir(parents=True)
    kept = stocked.files(".bin")
    gone = [other / "words.split-00.bin", kept[0].with_name("kernels.gone-00.bin"), kept[0].with_name("kernels.gone.0.tmp")]
    for path in gone:
        path.write_bytes(b"old")
    for path in (*gone, *kept):
        os.utime(path, (0, 0))
    stocked.run(f"{_CALL_BOTH}import time\nfrom datapipe.kernels.cache import remove_unused\nremove_unused(time.time())")
    assert not other.exists()
    assert stocked.files(".bin") == kept
    assert stocked.files(".tmp") == []
