"""Whole annotations against a chat server on loopback: what is asked, what is written, and what ends them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from datapipe.classifier.annotation.answers import Questions
from datapipe.classifier.annotation.counts import UnparsedError
from datapipe.classifier.annotation.spending import Prices
from datapipe.errors import UserError
from tests.support import corpora, runs
from tests.support.annotation_jobs import RUBRIC, annotated, by_length, files, job, rows

pytestmark = pytest.mark.medium


def test_annotation_labels_a_sample_and_asks_each_text_once(tmp_path, documents, server):
    server.answer = by_length
    done = annotated(job(documents, server.url, tmp_path / "out"))
    labelled = rows(tmp_path / "out")
    assert len(labelled) == len({row["text"] for row in labelled}) == len(server.requests) == 12
    for row in labelled:
        message = RUBRIC.messages(row["text"])[0]["content"]
        assert row["score"] == len(message) % 6
        assert row["reason"] == f"It has {len(message)} characters."
        assert row["model"] == "a-model"
        assert row["id"].startswith("web/")
    assert {request.message for request in server.requests} == {RUBRIC.messages(row["text"])[0]["content"] for row in labelled}
    assert done.counts.scores.total() == 12
    assert "12 documents in the sample, 0 answered already, 12 to ask" in done.said


def test_annotation_has_the_same_bytes_from_the_cache_and_with_any_timing(tmp_path, documents, server):
    server.answer = by_length
    first = job(documents, server.url, tmp_path / "first")
    annotated(first)
    expected = files(tmp_path / "first")
    annotated(first)
    assert files(tmp_path / "first") == expected
    assert len(server.requests) == 12
    server.fail("status", status=500, times=4)  # so that answers come in another order
    annotated(job(documents, server.url, tmp_path / "second", concurrency=1))
    assert files(tmp_path / "second") == expected


def test_annotation_of_a_larger_sample_asks_for_the_new_documents_alone(tmp_path, documents, server):
    annotated(job(documents, server.url, tmp_path / "out"))
    done = annotated(job(documents, server.url, tmp_path / "out", num_documents=20))
    assert len(server.requests) == 20
    assert "12 answered already, 8 to ask" in done.said
    annotated(job(documents, server.url, tmp_path / "other", num_documents=15, cache=tmp_path / "out" / "cache"))
    assert len(server.requests) == 20


def test_annotation_as_parquet_has_the_rows_of_jsonl(tmp_path, documents, server):
    wanted = job(documents, server.url, tmp_path / "a")
    annotated(wanted)
    annotated(job(documents, server.url, tmp_path / "b", cache=wanted.cache, format="parquet"))
    table = pq.read_table(tmp_path / "b" / "labelled.parquet", use_threads=False)
    assert table.to_pylist() == rows(tmp_path / "a")
    assert len(server.requests) == 12
    annotated(job(documents, server.url, tmp_path / "a", format="parquet"))
    assert sorted(files(tmp_path / "a")) == ["annotation.json", "labelled.parquet", "unparsed.jsonl"]


def test_annotation_of_every_text_tells_that_there_are_fewer(tmp_path, documents, server):
    done = annotated(job(documents, server.url, tmp_path / "out", num_documents=1000))
    assert done.counts.scores.total() == 38
    assert "there are 38 different texts, fewer than --sample 1,000" in done.said


def test_dry_run_estimates_and_asks_nothing(tmp_path, documents, server):
    prices = Prices(prompt=1000.0, completion=2000.0)
    wanted = job(documents, server.url, tmp_path / "out", prices=prices, is_dry_run=True)
    done = annotated(wanted)
    assert server.requests == []
    assert "labelled.jsonl" not in files(tmp_path / "out")
    assert f"and {12 * RUBRIC.max_tokens:,} to write at most: cost" in done.said
    annotated(job(documents, server.url, tmp_path / "out", prices=prices))
    told = int(done.said.split("about ")[1].split(" tokens")[0].replace(",", ""))
    sent = sum(len(request.message.encode()) for request in server.requests)
    assert sent / 4 <= told <= sent / 4 + 12 * 10


def test_prompt_of_texts_with_marks_of_templates_arrives_literally(tmp_path, server):
    texts = ["{text} {0} %s ${HOME}", '"quotes" \\ and \n lines', "naïve – 文字 🙂"]
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/a.jsonl\n", "", "tokenizer: none")
    runs.run_mixture(mixture, make_engine=runs.InProcess)
    annotated(job(tmp_path / "out", server.url, tmp_path / "annotated"))
    assert {request.message for request in server.requests} == {f"Rate this:\n{text}\nEnd with Score: N" for text in texts}
    assert {row["text"] for row in rows(tmp_path / "annotated")} == set(texts)


# ------------------------------------------------------------------------------------------------ answers without a score


@pytest.mark.parametrize(
    ("answer", "finish_reason", "reason"),
    [("Ich kann das nicht bewerten.", "stop", "no_score"), ("Score: 3", "length", "cut_off"), (" \n", "stop", "empty")],
)
def test_answers_without_a_score_are_kept_apart_and_not_asked_again(tmp_path, documents, server, answer, finish_reason, reason):
    server.answer, server.finish_reason = (lambda message: answer), finish_reason
    wanted = job(documents, server.url, tmp_path / "out", max_unparsed=Fraction(1))
    for _ in range(2):
        done = annotated(wanted)
        assert done.counts.unparsed == {reason: 12}
        assert f"{reason} 12" in done.said
        unparsed = rows(tmp_path / "out", "unparsed.jsonl")
        assert [(row["reason"], row["answer"]) for row in unparsed] == [(reason, answer)] * 12
        assert rows(tmp_path / "out") == []
        assert len(server.requests) == 12


def test_answers_without_a_score_are_asked_again_as_often_as_is_said(tmp_path, documents, server):
    numbers: dict[str, int] = {}

    def third_time(message: str) -> str:
        numbers[message] = numbers.get(message, 0) + 1
        return "Score: 1" if numbers[message] == 3 else "Well."

    server.answer = third_time
    for ask_again, scored, num_requests in ((1, 0, 24), (4, 12, 36), (4, 12, 36)):
        questions = Questions(rubric=RUBRIC, model="a-model", ask_again=ask_again)
        done = annotated(job(documents, server.url, tmp_path / "out", questions=questions, max_unparsed=Fraction(1)))
        assert done.counts.scores.total() == scored
        assert len(server.requests) == num_requests


def test_corrected_pattern_reads_the_answers_again_without_asking(tmp_path, documents, server):
    server.answer = lambda message: "**Rating: 4**"
    with pytest.raises(UnparsedError, match="Rating: 4"):
        annotated(job(documents, server.url, tmp_path / "out"))
    corrected = RUBRIC.model_copy(update={"answer": r"^\*\*Rating: (?P<score>.*)\*\*$"})
    done = annotated(job(documents, server.url, tmp_path / "out", questions=Questions(rubric=corrected, model="a-model")))
    assert done.counts.scores == {4.0: 12}
    assert len(server.requests) == 12


def test_another_model_template_or_option_is_asked_anew(tmp_path, documents, server):
    variants = [
        Questions(rubric=RUBRIC, model="a-model"),
        Questions(rubric=RUBRIC, model="b-model"),
        Questions(rubric=RUBRIC.model_copy(update={"template": "{text}"}), model="a-model"),
        Questions(rubric=RUBRIC.model_copy(update={"temperature": 0.1}), model="a-model"),
    ]
    for number, questions in enumerate(variants, 1):
        annotated(job(documents, server.url, tmp_path / "out", questions=questions))
        assert len(server.requests) == 12 * number


def test_too_many_answers_without_a_score_end_the_command_early(tmp_path, documents, server):
    server.answer = lambda message: "Hm."
    with pytest.raises(UnparsedError):
        annotated(job(documents, server.url, tmp_path / "out", num_documents=38, concurrency=1))
    assert len(server.requests) == 20
    assert "labelled.jsonl" not in files(tmp_path / "out")


# ------------------------------------------------------------------------------------------------ what the user gives


def test_output_that_is_not_of_an_annotation_is_refused(tmp_path, documents, server):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for name in ("mine", "mine/thesis.txt"):
        with pytest.raises(UserError, match=r"thesis\.txt"):
            annotated(job(documents, server.url, tmp_path / name))
    assert server.requests == []


@pytest.mark.parametrize("option", ["output", "cache"])
def test_folder_of_an_object_store_is_refused(tmp_path, documents, server, option):
    with pytest.raises(UserError, match=f"--{option} s3:/bucket/a"):
        annotated(replace(job(documents, server.url, tmp_path / "out"), **{option: Path("s3://bucket/a")}))
