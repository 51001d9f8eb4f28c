"""The loader imports NumPy and Arrow only, and names the package to install where torch is missing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.medium
def test_loader_imports_no_torch_ray_or_yaml() -> None:
    program = "import sys, datapipe.loader; print(sorted({'torch', 'ray', 'ruamel', 'pandas'} & set(sys.modules)))"
    paths = os.pathsep.join([str(Path(__file__).resolve().parents[3]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=120, capture_output=True, text=True, env=environment
    )
    assert done.stdout.strip() == "[]"


def test_torch_dataset_without_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "datapipe.loader.torch", raising=False)
    with pytest.raises(ImportError, match=r"pip install datapipe\[torch\]"):
        importlib.import_module("datapipe.loader.torch")
