"""The cache of answers: what is stored is found again, whatever happens to the end or the middle of its file."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from datapipe.classifier.annotation.cache import Answer, open_cache, request_key
from datapipe.errors import UserError

ANSWERS = [Answer(content=f"Line {number}\n\u2028 \0 é", finish_reason="stop", prompt_tokens=number) for number in range(20)]
KEYS = [request_key({"text": number}, 0) for number in range(20)]


def stored(folder, numbers=range(20)):
    async def put_all(cache):
        await asyncio.gather(*(cache.put(KEYS[number], ANSWERS[number]) for number in numbers))

    with open_cache(folder) as cache:
        asyncio.run(put_all(cache))
    return folder / "answers.jsonl"


def found(folder):
    with open_cache(folder) as cache:
        return [cache.get(key) for key in KEYS], cache.num_damaged


def test_cache_key_depends_on_everything_but_the_order_of_keys():
    body = {"model": "m", "messages": [{"content": "text"}], "temperature": 0.0}
    keys = {
        request_key(body, 0),
        request_key(body, 1),
        request_key(body | {"model": "n"}, 0),
        request_key(body | {"temperature": 0.5}, 0),
        request_key(body | {"messages": [{"content": "text "}]}, 0),
    }
    assert len(keys) == 5
    assert request_key(dict(reversed(body.items())), 0) == request_key(body, 0)


def test_cache_cut_at_any_byte_loses_the_last_answer_alone(tmp_path):
    path = stored(tmp_path, range(3))
    content = path.read_bytes()
    third = content.rindex(b"\n", 0, -1) + 1
    for length in range(third, len(content)):
        path.write_bytes(content[:length])
        assert found(tmp_path)[0][:4] == [*ANSWERS[:2], None, None]
        stored(tmp_path, [2])
        assert path.read_bytes() == content


def test_cache_with_a_flipped_bit_anywhere_loses_one_answer_at_most(tmp_path):
    path = stored(tmp_path, range(3))
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        answers, num_damaged = found(tmp_path)
        lost = [number for number in range(3) if answers[number] != ANSWERS[number]]
        assert len(lost) <= 2 if content[place : place + 1] == b"\n" else len(lost) == 1
        assert all(answers[number] is None for number in lost)
        assert num_damaged == 1 or place == len(content) - 1


def test_cache_answers_while_others_are_written(tmp_path):
    async def put_and_get(cache):
        for number in range(20):
            writing = asyncio.create_task(cache.put(KEYS[number], ANSWERS[number]))
            await asyncio.sleep(0)
            assert [cache.get(key) for key in KEYS[:number]] == ANSWERS[:number]
            await writing

    with open_cache(tmp_path) as cache:
        asyncio.run(put_and_get(cache))
        assert [cache.get(key) for key in KEYS] == ANSWERS
    assert found(tmp_path) == (ANSWERS, 0)


def test_cache_of_another_process_or_in_the_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with open_cache(tmp_path):
        for folder in (tmp_path, tmp_path / "file"):
            with pytest.raises(UserError), open_cache(folder):
                pass


def test_cache_on_a_full_disk_raises_and_keeps_what_it_had(tmp_path, monkeypatch):
    stored(tmp_path, [0])
    real = os.pwrite

    def full(descriptor, content, offset):
        real(descriptor, bytes(content)[:30], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        stored(tmp_path, [1, 2])
    monkeypatch.undo()
    assert found(tmp_path)[0][:3] == [ANSWERS[0], None, None]
