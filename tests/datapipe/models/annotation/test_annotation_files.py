"""The files of an annotation: its rubric, its sample of documents, and its cache of answers."""

import asyncio
import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import UserError
from datapipe.language_model.cache import Answer, open_cache, request_key
from datapipe.models.annotation.rubric import Rubric, Score, read_rubric
from datapipe.models.annotation.sample import draw_sample, find_sample

EDUCATIONAL = Path(__file__).resolve().parents[4] / "mixtures" / "educational.md"
RUBRIC = Rubric(scale=(0, 5), template="<<{text}>>", max_chars=5)


MARKS = ["{text}", "{", "{0}", "{{text}}", "%s", "$text", "---\nscale: 1\n---", "\0"]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(MARKS))
def test_rubric_inserts_a_text_literally_and_cut_at_a_character(text):
    sent = RUBRIC.messages(text)[0]["content"]
    assert sent == f"<<{text[:5]}>>"
    assert len(sent.encode()) <= 4 + 5 * 4
    whole = RUBRIC.model_copy(update={"max_chars": 1000})
    assert whole.messages(text)[0]["content"] == f"<<{text}>>"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("It explains fractions.\n\nScore: 4", Score(value=4, reason="It explains fractions.")),
        ("Score: 0\nNothing to learn.", Score(value=0, reason="Nothing to learn.")),
        ("Score:  3  ", Score(value=3, reason="")),
        ("", "no_score"),
        ("The score is 3", "no_score"),
        ("**Score: 3**", "no_score"),
        ("Score: 2\nOn reflection:\nScore: 4", "several_scores"),
        ("Score: 3 or 4", "not_a_number"),
        ("Score: 3.5", "not_a_number"),
        ("Score: ٣", "not_a_number"),
        ("Score: " + "9" * 5000, "not_a_number"),
        ("Score: ", "not_a_number"),
        ("Score: 6", "off_scale"),
    ],
)
def test_rubric_parses_answers_strictly(answer, outcome):
    assert read_rubric(EDUCATIONAL).parse(answer) == outcome


def test_rubric_with_decimals_takes_them():
    rubric = RUBRIC.model_copy(update={"decimals": True})
    assert rubric.parse("Score: 3.5") == Score(value=3.5, reason="")
    assert rubric.parse("Score: 5.01") == "off_scale"


def test_rubric_reads_what_follows_the_thinking_of_a_model():
    rubric = RUBRIC.model_copy(update={"answer_after": "</think>"})
    assert rubric.parse("<think>Perhaps\nScore: 1\n</think>\nScore: 2") == Score(value=2, reason="")
    assert rubric.parse("Score: 2") == Score(value=2, reason="")


def test_rubric_request_has_the_options_of_the_file(tmp_path):
    path = tmp_path / "rubric.md"
    path.write_text("---\nscale: [1, 3]\nsystem: Be brief.\noptions: {top_p: 0.5}\n---\nRate {text}\n")
    body = read_rubric(path).request("m", "this")
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rate this"}]
    assert (body["model"], body["temperature"], body["top_p"], body["stream"]) == ("m", 0.0, 0.5, False)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Rate {text}", ":1: no front matter"),
        ("---\n---\nRate {text}", ":1: the front matter has no keys"),
        ("---\nscale: [0, 5\n---\n{text}", "invalid YAML"),
        ("---\nscale: [0, 5]\nmax_char: 3\n---\n{text}", ":3: max_char: unknown key. Did you mean 'max_chars'?"),
        ("---\nscale: [0, 5]\nmax_chars: 0\n---\n{text}", ":3: max_chars: found 0, expected at least 1"),
        ("---\nscale: [5, 0]\n---\n{text}", "expected the lower end first"),
        ("---\nscale: [0, 0.5]\n---\n{text}", "or `decimals: true`"),
        ("---\nscale: [0, 5]\nanswer: '('\n---\n{text}", ":3: answer: found '(', expected a regular expression"),
        ("---\nscale: [0, 5]\nanswer: 'x'\n---\n{text}", "expected a group (?P<score>…)"),
        ("---\nscale: [0, 5]\noptions: {stream: true}\n---\n{text}", "expected no option of this name here: stream"),
        ("---\nscale: [0, 5]\n---\nno place", ":4: template: found {text} 0 times"),
    ],
)
def test_rubric_errors_name_file_and_line(tmp_path, content, expected):
    path = tmp_path / "rubric.md"
    path.write_text(content)
    with pytest.raises(UserError) as raised:
        read_rubric(path)
    assert str(raised.value).startswith(str(path))
    assert expected in str(raised.value)


def test_rubric_that_cannot_be_read_is_reported(tmp_path):
    (tmp_path / "latin.md").write_bytes(b"---\nscale: [0, 5]\n---\n\xe9 {text}")
    for name, expected in (("none.md", "No such file"), ("latin.md", "0xe9"), ("", "Is a directory")):
        with pytest.raises(UserError, match=expected):
            read_rubric(tmp_path / name)


ANSWERS = [Answer(content=f"Line {number}\n\u2028 \0 é", finish_reason="stop", prompt_tokens=number) for number in range(20)]
KEYS = [request_key({"text": number}) for number in range(20)]


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
        request_key(body),
        request_key(body | {"model": "n"}),
        request_key(body | {"temperature": 0.5}),
        request_key(body | {"messages": [{"content": "text "}]}),
    }
    assert len(keys) == 4
    assert request_key(dict(reversed(body.items()))) == request_key(body)


@pytest.mark.medium
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


TEXTS = [f"text {number} é" for number in range(60)]


def batches(texts, sizes, prefix="a"):
    def documents():
        start = 0
        while start < len(texts):
            size = sizes[start % len(sizes)]
            rows = texts[start : start + size]
            ids = [f"{prefix}:{start + number}" for number in range(len(rows))]
            yield pa.RecordBatch.from_pydict({"id": ids, "text": rows})
            start += size

    return documents


def drawn(tmp_path, texts, number, sizes=(7,), prefix="a", seed=0):
    sample = draw_sample(batches(texts, sizes, prefix), number, seed, tmp_path / "sample.jsonl")
    assert find_sample(sample.path).num_sampled == sample.num_sampled == len(list(sample.documents()))
    return list(sample.documents())


@pytest.mark.medium
@settings(max_examples=25, deadline=None)
@given(st.permutations(TEXTS), st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 70))
def test_sample_is_the_same_texts_in_any_order_and_batches(tmp_path_factory, texts, sizes, number):
    folder = tmp_path_factory.mktemp("sample")
    expected = {text for _, text in drawn(folder, TEXTS, number)}
    assert len(expected) == min(number, len(TEXTS))
    sampled = drawn(folder, texts, number, sizes, "elsewhere")
    assert {text for _, text in sampled} == expected
    assert [text for _, text in sampled] == [text for text in texts if text in expected]


def test_sample_has_a_repeated_text_once_as_its_first_document(tmp_path):
    texts = [text for text in TEXTS for _ in range(3)]
    sampled = drawn(tmp_path, texts, 20, (4,))
    assert {text for _, text in sampled} == {text for _, text in drawn(tmp_path, TEXTS, 20)}
    assert all(texts.index(text) == int(name.removeprefix("a:")) for name, text in sampled)


def test_smaller_sample_is_part_of_a_larger_one_and_other_seeds_draw_others(tmp_path):
    small, large = ({text for _, text in drawn(tmp_path, TEXTS, number)} for number in (10, 30))
    assert small < large
    assert {text for _, text in drawn(tmp_path, TEXTS, 10, seed=1)} != small


@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_sample_of_nothing_or_of_empty_texts(tmp_path, texts):
    assert len(drawn(tmp_path, texts, 5)) == len(set(texts))
