"""The depth that tags are measured to have, beside the depth of the tree that a parser makes of them."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from datapipe.kernels.html.elements import _FLAGGED, kind_of, packed
from datapipe.kernels.html.tags import measure_tags
from tests.support.marked_spans import scraps

pytestmark = pytest.mark.needs("resiliparse")

NAMES = scraps(
    "div p span b i a li ul table tr td tbody section form button font dl dd svg path h1 select option object nobr template "
    "x-own body script title br"
)
LIMIT = 20_000


def measured_depth(page: bytes) -> int:
    depths, others = np.empty(1, np.int64), np.empty(1, np.int64)
    offsets, data = np.array([0, len(page)]), np.frombuffer(page, np.uint8)
    measure_tags(offsets, data, np.zeros(LIMIT, np.uint64), depths, others, others.copy())
    return int(depths[0])


def tree_depth(page: bytes) -> int:
    """The depth of the tree below `<body>`."""
    from resiliparse.parse.html import HTMLTree, traverse_dom

    body, depths = HTMLTree.parse(page.decode()).body, [0]
    if body is not None:
        traverse_dom(body, lambda context: depths.append(context.depth), None, None, True)
    return max(depths)


tags = st.tuples(st.sampled_from(["<%s>", "<%s>", "<%s>", "</%s>", "<%s/>"]), st.sampled_from(NAMES)).map(
    lambda tag: tag[0] % tag[1]
)


@pytest.mark.medium
@settings(deadline=None)
@example(pattern=["<svg>", "<font>", "<script>"], repeats=100, text="")
@example(pattern=["<svg>", "<font color=red>", "<a/>"], repeats=100, text="")
@given(pattern=st.lists(tags, max_size=16), repeats=st.integers(1, 120), text=st.sampled_from(["", "x"]))
def test_measured_depth_is_at_least_a_third_of_that_of_the_tree(pattern: list[str], repeats: int, text: str) -> None:
    page = (text.join(pattern) * repeats).encode()
    assert tree_depth(page) <= 3 * measured_depth(page) + 8, page[:200]


DEPTHS = {
    b"<div><div></div><p>a<p>b</div>": 2,
    b"<ul><li>a<li>b<li>c</ul>": 2,
    b"<table><tr><td>a<td>b<tr><td>c</table>": 3,
    b"<br><img><input>": 0,
    b"<script>'<div><div>'</script><b>": 1,
    b"<script><!-- <script> </script><div> --></script><b>": 1,
    b"<textarea><div></textarea>": 0,
    b"<!-- <div> --><b>": 1,
    b"<svg><g/><g/><title>a</title></svg>": 2,
    b"<a title='<div><div>'>": 1,
    b"<b><i></b></i>": 2,
    b"1 < 2 <3 </ >": 0,
}


def test_measured_depth_of_whole_pages_is_that_of_the_tree() -> None:
    assert {page: measured_depth(page) for page in DEPTHS} == DEPTHS


def test_elements_have_their_flags_and_others_none() -> None:
    with np.errstate(over="ignore"):
        for flag, names in _FLAGGED.items():
            assert all(kind_of(np.uint64(packed(name))) & flag for name in names.split())
        assert not any(kind_of(np.uint64(packed(name))) for name in ("section", "x-own", "laintex", "", "scripts"))
