"""The pictures of the documents are as `python -m tests.support.pictures` draws them, and a document shows each."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.pictures import PICTURES, ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("path", PICTURES)
def test_picture_is_as_the_code_draws_it_and_a_document_shows_it(path: str, tmp_path: Path) -> None:
    drawn = PICTURES[path](tmp_path)
    assert (ROOT / path).read_text(encoding="utf-8") == drawn
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    folder, _, name = path.rpartition("/")
    readme, link = (ROOT / "README.md", path) if folder.startswith(".github") else (ROOT / folder / "README.md", name)
    assert f"]({link})" in readme.read_text(encoding="utf-8")
