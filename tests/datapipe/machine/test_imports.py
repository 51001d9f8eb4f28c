import subprocess
import sys

import pytest


@pytest.mark.medium
@pytest.mark.parametrize("first", ["pyarrow", "pandas"])
def test_pandas_is_imported_by_those_alone_who_name_it_and_pyarrow_then_takes_its_values(first: str):
    script = f"""
import sys
from datapipe.machine.terminal import prepare_process
prepare_process()
import {first}, pyarrow as pa
print(pa.array(["text"])[0], pa.scalar(1.5), "pandas" in sys.modules)
import pandas
print(pa.array(pandas.Series([1.5, float("nan")])).null_count, *pa.table(dict(a=[1])).to_pandas()["a"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["text", "1.5", str(first == "pandas"), "1", "1"]
