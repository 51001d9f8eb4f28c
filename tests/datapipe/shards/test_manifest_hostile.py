"""Manifests of other parties, with a right fingerprint over absurd content: one sentence, wherever they are opened."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from datapipe.browse.output import BrowsedOutput
from datapipe.errors import DatapipeError
from datapipe.loader import Loader
from datapipe.loader.remote.protocol import OpenRequest
from datapipe.service.outputs import ServedOutput
from tests.support import packed_shards
from tests.support.command_line import datapipe

pytestmark = pytest.mark.medium

_TRIED = 80
"""Of about 300 manifests, other ones for each way to open them."""

_LONG = "A" * 100_000
_NUMBERS = (-1, 0, 1, 2**31, 2**62 - 1, 2**63, 10**400, 1.5, 1e308, None, True, "x", [], {})
_TEXTS = ("", "..", "../../etc/passwd", "/dev/zero", "pipe", "folder", "endless", _LONG, "\x1b[2J", 7, None, [], {})
_OTHERS = (None, [], {}, [[]], {"x": 1}, "x", -1)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    snapshot = packed_shards.make_snapshot(folder, packed_shards.packed_batch(40, 32), target_bytes=4000)
    (folder / "snapshot.json").write_bytes(snapshot.to_json())
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "endless").symlink_to("/dev/zero")
    (folder / "mixture.yaml").write_text(
        f"name: other\noutput: {folder}/of-other\nsources:\n  old: {{snapshot: {folder}}}\n"
        f"tokenizer: {{path: {folder}/tokenizer.json}}\npack: {{sequence_length: 32}}\n"
    )
    return folder


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every field of a manifest, of lists the first entry."""
    if place:
        yield place, value
    children = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for name, child in children:
        yield from _places(child, (*place, name))


def _resealed(manifest: dict[str, Any], place: tuple[Any, ...], value: Any) -> bytes:
    """The manifest with another value in one place, as a run would write it."""
    changed = copy.deepcopy(manifest)
    parent = changed
    for name in place[:-1]:
        parent = parent[name]
    parent[place[-1]] = value
    if place != ("fingerprint",):
        del changed["fingerprint"]
        changed["fingerprint"] = packed_shards.digest_of(changed)
    return json.dumps(changed, indent=1, ensure_ascii=False).encode()


def _hostile(manifest: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    for place, value in _places(manifest):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        for other in _NUMBERS if is_number else _TEXTS if isinstance(value, str) else _OTHERS:
            yield f"{'.'.join(map(str, place))}: {str(other)[:30]}", _resealed(manifest, place, other)


def _load(output: Path) -> None:
    with closing(Loader(str(output), global_batch_size=2)) as loader:
        for _, _ in zip(loader, range(2)):
            loader.state_dict()


def _command(arguments: str) -> Callable[[Path], None]:
    def run(output: Path) -> None:
        shutil.rmtree(output.parent / "exported", ignore_errors=True)
        ended = datapipe([argument.format(output) for argument in arguments.split()])
        printed = ended.stdout + ended.stderr
        assert "defect of datapipe" not in printed, printed
        assert "Traceback" not in printed, printed
        assert len(printed) < 20_000, printed[:500]

    return run


_OPENERS: dict[str, Callable[[Path], object]] = {
    "loader": _load,
    "browse": lambda output: BrowsedOutput.open(str(output)),
    "serve": lambda output: ServedOutput("web", str(output)).open(OpenRequest(output="web", global_batch_size=2)),
    "verify": _command("verify {}"),
    "report": _command("report {}"),
    "snapshots": _command("snapshots {}"),
    "inspect": _command("inspect {}"),
    "trace": _command("trace {} --step 0 --global-batch-size 2 --text"),
    "export": _command("export {} --format parquet --to {}/../exported"),
    "megatron": _command("export {} --format megatron --to {}/../exported"),
    "plan": _command("plan {}/mixture.yaml"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", _OPENERS)
def test_resealed_manifest_is_read_or_refused_in_one_sentence(output: Path, name: str) -> None:
    manifest, opener = json.loads((output / "snapshot.json").read_bytes()), _OPENERS[name]
    _open("sound", opener, output)
    sound = (output / "snapshot.json").read_bytes()
    try:
        for what, content in random.Random(name).sample(list(_hostile(manifest)), _TRIED):
            (output / "snapshot.json").write_bytes(content)
            _open(what, opener, output)
    finally:
        (output / "snapshot.json").write_bytes(sound)


def _open(what: str, opener: Callable[[Path], object], output: Path) -> None:
    """Opens an output, which may be refused. Fails where that ends with another error than one for the user."""
    refusal = ""
    try:
        opener(output)
    except DatapipeError as error:
        refusal = str(error)
    except BaseException as error:
        error.add_note(what)
        raise
    assert len(refusal) < 3000, what


@pytest.mark.parametrize(
    "put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir], ids=["pipe", "endless", "folder"]
)
@pytest.mark.parametrize("name", ["snapshot.json", "tokenizer.json", "files.parquet", "shards"])
def test_pipe_device_or_folder_in_the_place_of_a_file_is_told_and_not_waited_for(
    output: Path, tmp_path: Path, name: str, put: Callable[[Path], None]
) -> None:
    manifest = json.loads((output / "snapshot.json").read_bytes())
    path = output / (manifest["shards"][0]["path"] if name == "shards" else name)
    path.rename(tmp_path / "sound")
    try:
        put(path)
        for opener in _OPENERS.values():
            _open(name, opener, output)
    finally:
        path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / "sound").rename(path)
