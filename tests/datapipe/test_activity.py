"""What a process tells, as another process reads it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe import activity
from datapipe.activity import PAGE_BYTES, Activity, Page
from datapipe.metrics import TaskMetrics


@pytest.fixture
def page():
    descriptor = activity.shared_file(PAGE_BYTES)
    made = Page(descriptor)
    os.close(descriptor)
    activity.tell_to(made)
    yield made
    activity.tell_to(None)
    made.close()


def _now(page: Page) -> Activity:
    told = page.read()
    assert told is not None
    return told[1]


def test_activity_is_that_of_the_innermost_block_and_then_that_of_the_block_around_it(page):
    with activity.doing("filter.length", 100):
        activity.on_documents("a.jsonl:7", b"k" * 16, 3, 100)
        outer = _now(page)
        with activity.doing("compiling kernel words", is_waiting=True):
            assert _now(page) == Activity(work="compiling kernel words", is_waiting=True)
        assert _now(page) == outer
    assert str(outer) == "filter.length on 3 documents, from a.jsonl:7"
    assert outer.is_on_documents
    assert _now(page) == Activity()


def test_activity_every_message_counts(page):
    counts = []
    with TaskMetrics().timed("merge"):
        for _ in range(3):
            activity.progress()
            counts.append(page.read()[0])
    assert counts == [counts[0], counts[0] + 1, counts[0] + 2]


def test_activity_survives_the_process_that_told_it(page):
    child = os.fork()
    if child == 0:
        with activity.doing("redact.pii"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert _now(page).work == "redact.pii"


@given(
    work=st.text(max_size=400),
    place=st.text(max_size=800),
    key=st.binary(min_size=16, max_size=16),
    sizes=st.integers(0, 1 << 62),
)
def test_page_takes_any_text_and_reads_it_printable(work, place, key, sizes):
    descriptor = activity.shared_file(PAGE_BYTES)
    page = Page(descriptor)
    os.close(descriptor)
    page.write(Activity(work=work, place=place, key=key, num_docs=sizes, num_bytes=sizes))
    told = _now(page)
    page.close()
    assert told.num_docs == told.num_bytes == sizes
    assert told.key == (key if any(key) else b"")
    assert told.work.isprintable() and told.place.isprintable()
    if work.isascii() and work.isprintable():
        assert told.work == work[:160]


def test_page_that_is_half_written_is_no_message():
    descriptor = activity.shared_file(PAGE_BYTES)
    page = Page(descriptor)
    assert page.read() is None
    page.write(Activity(work="read"))
    os.pwrite(descriptor, b"x", PAGE_BYTES - 1)
    assert page.read() is None
    page.close()
    os.close(descriptor)


def test_activity_without_a_page_tells_nobody():
    with activity.doing("read"):
        activity.at_place(str(Path("a.jsonl")))
        activity.progress()
    assert not activity.is_told()
