"""decontaminate.ngram: what each profile drops and cuts, the rule of short items, shared n-grams, attribution."""

import json
import random
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard

from datapipe.config import StageUse
from datapipe.config.catalogue import build_stage
from datapipe.errors import UserError
from stages.decontaminate._evaluation_files import Benchmark, read_set
from stages.decontaminate.ngram import Ngram
from tests.support.decisions import reasons
from tests.support.evaluation_files import FILLER, LONG_ANSWER, SHORT, TINY, WINDMILL, batch, found, found_in, write

pytestmark = pytest.mark.medium

QUESTION, ANSWER = WINDMILL["question"], WINDMILL["answer"]
WHOLE_SHORT = f"{SHORT['question']} {SHORT['answer']}"
FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "capitals": str.upper,
    "small letters": str.lower,
    "title": str.title,
    "decomposed": lambda text: unicodedata.normalize("NFD", text),
    "full width": lambda text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
    "a line for each word": lambda text: "\r\n".join(text.split()),
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "soft hyphens": lambda text: text.replace("i", "i\u00ad"),
    "without punctuation": lambda text: "".join(c for c in text if c.isalnum() or c.isspace()),
    "spaces for punctuation": lambda text: "".join(c if c.isalnum() else " " for c in text),
    "more punctuation": lambda text: "**" + text.replace(" ", "! ").replace(",", " — ") + "**",
    "commas": lambda text: ", ".join(text.split()),
    "typographic quotes": lambda text: "«" + text.replace("'", "’").replace('"', "”") + "»",
    "hyphens": lambda text: text.replace("-", "\u2011"),
}

LONG_WORDS = (
    "When the council of the harbour met for the third time that winter it was decided that every captain who brought "
    "salt from the islands should pay the keeper of the light one measure in forty and that whoever refused would "
    "find the chain drawn across the mouth of the bay until the debt was settled or the spring tide had turned"
)
LONG_LIST = LONG_WORDS.split()
LONG = {"id": "long", "question": LONG_WORDS}


@pytest.fixture
def stage(tmp_path: Path) -> Callable[..., Ngram]:
    """Makes a stage against items."""

    def made(*items: dict[str, object], **options: object) -> Ngram:
        path = write(tmp_path / "items.jsonl", items or [WINDMILL, SHORT, TINY, LONG_ANSWER])
        return Ngram.model_validate({"against": (path,), **options})

    return made


@pytest.mark.parametrize("profile", ["gpt3", "strict", "coverage"])
def test_item_is_found_anywhere_in_a_document_and_nothing_in_clean_text(stage: Callable[..., Ngram], profile: str) -> None:
    item = f"{QUESTION} The answer is {ANSWER}."
    texts = [f"{item} {FILLER}", f"{FILLER}{item} {FILLER}", f"{FILLER}{item}", item, FILLER, ""]
    result = stage(profile=profile).process(batch(texts))
    assert found(result) == [["windmill"]] * 4 + [[], []]
    if profile != "gpt3":
        assert result.keep.tolist() == [False] * 4 + [True] * 2
    assert result.findings is not None
    for row, start, stop in zip(*(result.findings.column(name).to_pylist() for name in ("row", "start", "stop"))):
        assert texts[row].encode()[start:stop].decode().startswith("The windmill on the hill")


def test_finding_has_its_span_list_and_value(stage: Callable[..., Ngram]) -> None:
    text = f"{FILLER}{QUESTION} Then: {WHOLE_SHORT}. And last: {LONG_ANSWER['answer']}"
    result = stage(profile="strict").process(batch([text]))
    assert found(result) == [["windmill", "short", "long answer"]]
    assert result.findings is not None
    short = result.findings.slice(1, 1).to_pylist()[0]
    assert text.encode()[short["start"] : short["stop"]].decode() == WHOLE_SHORT
    assert (short["list"], short["value"]) == ("items", 1.0)


QUESTIONS = {
    "accents": "Qu'est-ce que l'élève naïf a écrit à son père en juin, l'année où la forêt brûla près de Liège?",
    "signs": "A state-of-the-art set's 1,000 sensors don't drift; at 3.5 volts which well-known U.S. maker's did?",
    "straße": "Warum mußte die Straße nach Groß-Umstadt im März für fünf Wochen völlig gesperrt werden?",
    "greek": "Ποιος έγραψε ότι ο Σίσυφος πρέπει να είναι ευτυχισμένος καθώς ανεβαίνει ξανά και ξανά στο βουνό;",
    "turkish": "İstanbul'un ışıklı sokaklarında akşamları kimler yürür, hangi şarkıyı söyler ve niçin kıyıda uzun bekler?",
    "chinese": "哪一座桥是在一八七四年的暴风雨之后由村民们自己重新修建的，并且至今仍然跨越那条宽阔的河流？",
    "thai": "กังหันลมบนเนินเขาเหนือหมู่บ้านทางเหนือถูกสร้างขึ้นใหม่ในปีใดหลังจากพายุใหญ่พัดใบเรือหายไปจนหมดสิ้น",
    "korean": "폭풍이 지나간 뒤에 마을 사람들이 언덕 위의 풍차를 다시 세운 것은 몇 년도의 일이며 누가 이끌었는가?",
    "hindi": "तूफ़ान के बाद गाँव के लोगों ने पहाड़ी पर पवनचक्की किस वर्ष में फिर से बनाई और काम किसने सँभाला?",
}
ITEMS = [{"id": name, "question": question} for name, question in QUESTIONS.items()] + [SHORT]


def test_words_of_a_dictionary_are_found_where_they_stand(stage: Callable[..., Ngram]) -> None:
    text = f"中文。{QUESTIONS['chinese']}东京x都 {FILLER}{QUESTIONS['thai']}"
    result = stage(*ITEMS, profile="strict", words="dictionary").process(batch(["日本", text]))
    assert result.findings is not None
    rows = result.findings.to_pylist()
    spans = {row["entry"]: text.encode()[row["start"] : row["stop"]].decode() for row in rows}
    assert spans == {name: QUESTIONS[name].rstrip("？") for name in ("chinese", "thai")}
    assert {row["row"] for row in rows} == {1}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "options", [{"profile": "strict"}, {"profile": "coverage"}, {"profile": "strict", "words": "dictionary"}]
)
def test_items_are_found_in_every_form_of_their_text(stage: Callable[..., Ngram], form: str, options: dict[str, str]) -> None:
    names = [str(item["id"]) for item in ITEMS]
    texts = [f"{item['question']} {item.get('answer', '')}" for item in ITEMS]
    if form in ("without punctuation", "spaces for punctuation"):  # vowel signs are no punctuation
        names, texts = zip(*((name, text) for name, text in zip(names, texts) if name not in ("thai", "hindi")))
    documents = [f"{FILLER}{FORMS[form](text)} {FILLER}" for text in texts]
    assert found_in(stage(*ITEMS, **options), *documents) == [[name] for name in names]


# ------------------------------------------------------------------------------------------------ gpt3


def test_gpt3_cuts_two_hundred_characters_on_both_sides_and_drops_pieces_below_two_hundred(stage: Callable[..., Ngram]) -> None:
    thirteen = " ".join(QUESTION.split()[:13]).rstrip(",")
    around = [(FILLER[:399], FILLER[:398]), (FILLER[:398], FILLER[:399]), (FILLER[:399], FILLER[:399]), (FILLER[:398], "")]
    result = stage().process(batch([*(f"{before} {thirteen} {behind}" for before, behind in around), FILLER]))
    first, last = FILLER[:200], FILLER[:399][-200:]
    assert result.columns["text"].to_pylist()[:3] == [first, last, f"{first}\n\n{last}"]
    assert result.columns["text"].to_pylist()[4] == FILLER
    assert result.columns["cut_documents"].to_pylist() == [1, 1, 1, 0, 0]
    assert reasons(stage(), batch([f"{FILLER[:398]} {thirteen}"])) == ["nothing_left"]


def test_gpt3_drops_documents_with_more_than_ten_matches(stage: Callable[..., Ngram]) -> None:
    words = QUESTION.split()
    texts = [f"{FILLER}{' '.join(words[:count])} {FILLER}" for count in (22, 23)]
    result = stage().process(batch(texts))
    assert result.measured[0].tolist() == [10, 11]
    assert result.keep.tolist() == [True, False]


def _janitor(text: str, grams: set[tuple[str, ...]]) -> str | None:
    """The rule in plain Python, for texts of ASCII letters, spaces and full stops: what stays, None for nothing."""
    words = [(word[0].lower(), word.start(), word.end()) for word in re.finditer("[A-Za-z]+", text)]
    windows = [words[first : first + 13] for first in range(len(words) - 12)]
    matches = [(window[0][1], window[-1][2]) for window in windows if tuple(word for word, *_ in window) in grams]
    if len(matches) > 10:
        return None
    is_cut = [any(start - 200 <= place < stop + 200 for start, stop in matches) for place in range(len(text))]
    pieces = "".join("\0" if cut else character for character, cut in zip(text, is_cut)).split("\0")
    kept = [piece for piece in pieces if len(piece) >= 200] if matches else [text]
    return "\n\n".join(kept) if kept else None


def test_gpt3_equals_a_slow_janitor_on_random_texts(tmp_path: Path) -> None:
    rng = random.Random(5)
    vocabulary = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 8))) for _ in range(300)]
    items = [rng.choices(vocabulary, k=rng.randint(13, 40)) for _ in range(30)]
    path = write(tmp_path / "items.jsonl", [{"question": " ".join(item)} for item in items])
    grams = {tuple(item[first : first + 13]) for item in items for first in range(len(item) - 12)}
    texts = []
    for _ in range(120):
        parts = [rng.choices(vocabulary, k=rng.randint(0, 120)) for _ in range(rng.randint(1, 4))]
        planted = [rng.choice(items)[: rng.randint(10, 20)] for _ in parts]
        words = [word for part, item in zip(parts, planted) for word in part + item]
        texts.append(" ".join(word.upper() + "." if rng.random() < 0.1 else word for word in words))
    result = Ngram(against=(path,)).process(batch(texts))
    after = result.columns["text"].to_pylist() if "text" in result.columns else texts
    assert [text if keep else None for text, keep in zip(after, result.keep)] == [_janitor(text, grams) for text in texts]
    assert 20 < sum(not keep for keep in result.keep) < 100
    assert sum(text != before for text, before, keep in zip(after, texts, result.keep) if keep) > 20


# ------------------------------------------------------------------------------------------------ profiles and items


def _edited(first: int, step: int, count: int) -> str:
    """LONG_WORDS with `count` words replaced."""
    replaced = set(range(first, len(LONG_LIST), step)[:count])
    return " ".join("zzz" if place in replaced else word for place, word in enumerate(LONG_LIST))


Items = list[dict[str, object]]
COVERAGE, STRICT = {"profile": "coverage"}, {"profile": "strict"}
INNER = {"id": "inner", "question": " ".join(QUESTION.split()[:15]), "answer": "a ship"}
SAME: Items = [{"id": name, "question": QUESTION, "answer": answer} for name, answer in (("a", "1874"), ("b", "eighteen"))]
WRONG = " ".join(LONG_LIST[:20])
CHOICE = {"id": "choice", "question": QUESTION, "choices": ["1874", WRONG], "answer": 0}
FAR = " ".join(FILLER.split()[:80])
WHOLE_TINY = f"{TINY['question']} {TINY['answer']}"
SHORT_CHOICE = f"Q: {SHORT['question']}\nA. Iron\nB. {SHORT['answer']}\nAnswer: B"
FOUND: list[tuple[Items, dict[str, Any], dict[str, list[str]]]] = [
    # items with few edits, and with many by a low threshold; n-grams count within one passage
    ([LONG], COVERAGE, {f"{FILLER}{_edited(12, 5, 1)} {FILLER}": ["long"], f"{FILLER}{_edited(12, 5, 9)} {FILLER}": []}),
    ([LONG], STRICT, {_edited(11, 12, 99): []}),
    ([LONG], COVERAGE | {"min_coverage": 0.5}, {_edited(11, 12, 99): ["long"]}),
    ([LONG], COVERAGE, {f"{' '.join(LONG_LIST[:30])} {FILLER} {' '.join(LONG_LIST[30:])}": []}),
    *(
        ([WINDMILL], profile, {f"{FILLER}{text} {FILLER}": names})
        for text, of_strict, of_coverage in (
            (" ".join(QUESTION.split()[:13]), ["windmill"], []),  # thirteen words in a row, and less than most of the item
            (QUESTION.replace("Brandt", "Branth").replace("storm", "gale"), [], []),
            ("on the hill above Brandt, a village in the north", [], []),
        )
        for profile, names in ((STRICT, of_strict), (COVERAGE, of_coverage))
    ),
    # a short item is found with its answer near behind it, and not alone
    ([SHORT], STRICT, {WHOLE_SHORT: ["short"], SHORT_CHOICE: ["short"], f"{SHORT['question']} {FAR} {SHORT['answer']}": []}),
    ([SHORT], STRICT, {SHORT["question"]: [], f"{SHORT['answer']} {SHORT['question']}": []}),
    ([TINY], STRICT, {WHOLE_TINY: []}),
    ([TINY], STRICT | {"min_words": 6}, {WHOLE_TINY: ["tiny"]}),
    (SAME, STRICT, {f"{FILLER}{QUESTION}": ["a", "b"]}),
    # a question inside of another one is found as a whole
    ([INNER, WINDMILL], STRICT, {f"{INNER['question']} {FILLER}": [], f"{INNER['question']}: a ship. {FILLER}": ["inner"]}),
    ([CHOICE], STRICT, {f"{FILLER}{WRONG}": ["choice"]}),
    # ids that are not distinct give way to rows
    ([{"id": "same", "question": QUESTION}, {"id": "same", "question": LONG_WORDS}], STRICT, {LONG_WORDS: ["1"]}),
]


@pytest.mark.parametrize(("items", "options", "texts"), FOUND)
def test_texts_hold_the_items_of_their_profile(
    stage: Callable[..., Ngram], items: Items, options: dict[str, Any], texts: dict[str, list[str]]
) -> None:
    assert dict(zip(texts, found_in(stage(*items, **options), *texts))) == texts


def test_items_below_the_least_words_are_listed_as_undetectable(stage: Callable[..., Ngram]) -> None:
    [listed] = stage().searched_lists()
    assert (listed.name, listed.entries, listed.undetectable) == ("items", 4, ("tiny",))
    assert stage(min_words=6).searched_lists()[0].undetectable == ()
    assert [stage(profile=profile).num_words for profile in ("coverage", "strict", "gpt3")] == [5, 13, 13]


def test_shared_n_grams_do_not_count_alone_but_with_one_of_the_same_item(stage: Callable[..., Ngram]) -> None:
    passage = " ".join(FILLER.split()[:40])
    first = "Which of the animals that the text mentions had gone to sleep by then?"
    second = "What do the boys on the pier sell to the people who wait for the ferry?"
    items = [
        {"id": name, "context": passage, "question": question} for name, question in (("first", first), ("second", second))
    ]
    strict = stage(*items, profile="strict")
    assert found_in(strict, passage, f"{passage} {first}") == [[], ["first"]]
    result = stage(*items, max_matches=1000).process(batch([f"{passage} {first}", first, passage]))
    assert result.measured[0][0] > 30 > result.measured[0][1] > result.measured[0][2] == 0


def test_templates_of_very_many_items_bound_what_a_document_costs(stage: Callable[..., Ngram]) -> None:
    template = " ".join(LONG_WORDS.split()[:14])
    items = [
        {"id": str(number), "question": f"{template} number{number} {'abcdefghij'[number % 10]} z y x w v u t s r q p o"}
        for number in range(300)
    ]
    text = f"{items[7]['question']} " + f"{template}. " * 3000
    result = stage(*items, profile="strict").process(batch([text, template * 3]))
    assert found(result) == [["7"], []]
    assert result.measured[0][0] < 100


def test_tagged_documents_stay_and_name_their_items(stage: Callable[..., Ngram]) -> None:
    texts = [f"{FILLER}{QUESTION}", FILLER, WHOLE_SHORT]
    for profile in ("gpt3", "strict", "coverage"):
        result = stage(profile=profile, mode="tag").process(batch(texts))
        names = result.columns["contaminated_by"].to_pylist()
        assert names == [["items:windmill"], [], ["items:short"]]


def test_hostile_documents_cost_time_in_proportion_to_their_length(stage: Callable[..., Ngram]) -> None:
    texts = [f"{SHORT['question']} " * 3000, f"{QUESTION} " * 1000, "\ud7ff\u0301" * 9000]
    result = stage(profile="gpt3").process(batch(texts))
    assert result.keep.tolist() == [True, False, True]
    assert found(result)[1] == ["windmill"]


# ------------------------------------------------------------------------------------------------ evaluation files

RECORDS: dict[str, dict[str, object]] = {
    "question and answer": {"question": QUESTION, "answer": ANSWER},
    "query, choices, gold": {"query": f"Question: {QUESTION}", "choices": ["no", ANSWER], "gold": 1},
    "context and continuation": {"context": QUESTION, "continuation": ANSWER},
    "choices by letter": {"question": QUESTION, "choices": {"text": ["no", ANSWER], "label": ["A", "B"]}, "answerKey": "B"},
    "prompt and solution": {"prompt": QUESTION, "canonical_solution": ANSWER, "test": "assert"},
    "options by question": {"context_options": [QUESTION, "no"], "continuation": ANSWER, "gold": 0},
    "blank": {"sentence": QUESTION.replace("windmill", "_", 1), "option1": "windmill", "option2": "no", "answer": "1"},
    "premise": {"premise": QUESTION, "choice1": "no", "choice2": ANSWER, "label": 1},
    "passage": {"passage": QUESTION[:60], "question": QUESTION[60:], "answer": True},
    "stem and option": {"question_stem": QUESTION, "options": ["no", ANSWER], "correct_option": 1},
    "several answers": {"question": QUESTION, "answer": [ANSWER, "in the year 1874"]},
    "answer with a value": {"question": QUESTION, "answer": {"value": ANSWER, "aliases": ["MDCCCLXXIV"]}},
    "nested answers": {"question": QUESTION, "answers": {"text": [ANSWER], "answer_start": [3]}},
}


@pytest.mark.parametrize("form", RECORDS)
def test_common_forms_of_evaluation_files_are_recognised(stage: Callable[..., Ngram], form: str) -> None:
    made = stage(RECORDS[form], profile="strict")
    assert found_in(made, f"{FILLER}{QUESTION} {ANSWER}") == [["0"]]
    assert "question from" in made.notes()[0]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".jsonl.bz2", ".jsonl.xz", ".parquet", ".json"])
def test_files_of_every_format_give_the_same_items(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"items{ending}", [WINDMILL, SHORT])
    options = {"against": [str(tmp_path / f"*{ending}")], "profile": "strict"}
    made = build_stage(StageUse(name="decontaminate.ngram", alias="ngram", options=options))
    assert isinstance(made, Ngram)
    assert made.input_files() == (path,)
    assert found_in(made, QUESTION, WHOLE_SHORT) == [["windmill"], ["short"]]
    assert made.searched_lists()[0].name == "items"


def test_sets_and_fields_that_are_named_are_the_ones_that_count(tmp_path: Path) -> None:
    own = {"path": write(tmp_path / "own.jsonl", [{"frage": LONG_WORDS, "question": QUESTION, "nr": "x7"}]), "name": "own"}
    made = Ngram.model_validate({"against": (own | {"question": "frage", "id": "nr"},), "profile": "strict"})
    assert found_in(made, QUESTION, LONG_WORDS) == [[], ["x7"]]
    items = write(tmp_path / "items.jsonl", [TINY, SHORT, LONG])
    both = Ngram.model_validate({"against": (own, items), "profile": "strict", "mode": "tag"})
    names = both.process(batch([LONG_WORDS, QUESTION, WHOLE_SHORT])).columns["contaminated_by"].to_pylist()
    assert names == [["items:long"], ["own:0"], ["items:short"]]
    assert [(one.name, one.entries, one.undetectable) for one in both.searched_lists()] == [
        ("own", 1, ()),
        ("items", 3, ("tiny",)),
    ]


def test_stage_without_texts_to_search_for_keeps_everything(stage: Callable[..., Ngram]) -> None:
    made = stage({"question": ""}, {"question": "?"}, profile="strict")
    assert made.process(batch([FILLER, "", "?"])).keep.all()
    assert made.searched_lists()[0].undetectable == ("0", "1")
    assert isinstance(made.process(batch([])).findings, pa.RecordBatch)


ITEM = b'{"question": "a"}\n'


@pytest.mark.parametrize(
    ("files", "options", "named"),
    [
        ({"a.jsonl": b'{"number": 1}\n'}, {}, "number"),
        ({"a.jsonl": b"\n"}, {}, "a.jsonl"),
        ({"a.jsonl": ITEM + b"not json\n"}, {}, "line 2"),
        ({"a.jsonl": b"[1]\n"}, {}, "int"),
        ({"a.jsonl.gz": b"plain"}, {}, "a.jsonl.gz"),
        ({"a.txt": b"x"}, {}, "a.txt"),
        ({"a.parquet": b"PAR1"}, {}, "a.parquet"),
        ({"a.jsonl": ITEM}, {"against": ["absent/*.jsonl"]}, "jsonl"),
        ({"a.jsonl": ITEM}, {"against": [{"path": "a.jsonl", "question": "frage"}]}, "'frage'"),
        ({"a.jsonl": ITEM}, {"against": ["a.jsonl", "a.jsonl"]}, "'a'"),
        ({"a.jsonl": ITEM}, {"profile": "strict", "max_matches": 3}, "profile"),  # which the profile does not read
        ({"a.jsonl": ITEM}, {"min_coverage": 0.5}, "profile"),
    ],
)
def test_files_and_options_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], options: dict[str, Any], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises((UserError, ValueError), match=named):
        Ngram.model_validate({"against": list(files)} | options).notes()


# ------------------------------------------------------------------------------------------------ real benchmarks


FORMS_OF_REAL = {
    "capitals": FORMS["capitals"],
    "a line for each word": FORMS["a line for each word"],
    "no punctuation but underscores": lambda text: "".join(c for c in text if c.isalnum() or c.isspace() or c == "_"),
}


@pytest.mark.real
@pytest.mark.parametrize("profile", ["strict", "coverage"])
def test_real_benchmarks_are_found_in_prose_that_is_clean_without_them(profile: str, real_data: Path) -> None:
    files = sorted((real_data / "prose").glob("*.jsonl.zst"))
    lines = [line for path in files for line in zstandard.open(path, "rt", encoding="utf-8")]
    prose = [json.loads(line)["text"] for line in lines]
    against = tuple(sorted((real_data / "benchmarks").iterdir()))
    stage = Ngram.model_validate({"against": against, "profile": profile})
    contaminated = [names for names in found(stage.process(batch(prose))) if names]
    assert len(contaminated) <= 0.001 * len(prose)  # quotations
    lost = {listed.name: set(listed.undetectable) for listed in stage.searched_lists()}
    items = [(each.name, item) for each in map(read_set, Benchmark(path=against).sets()) for item in each.items]
    assert sum(map(len, lost.values())) < 0.02 * len(items)
    rng, long = random.Random(11), [text for text in prose if len(text) > 900]
    for form in FORMS_OF_REAL.values():
        around = [rng.choice(long) for _ in items]
        planted = [form(f"{item.question} {item.answer}") for _, item in items]
        texts = [f"{text[:400]}\n{item}\n{text[400:800]}" for text, item in zip(around, planted)]
        told = found(stage.process(batch(texts)))
        missed = [(name, item.name) for (name, item), names in zip(items, told) if item.name not in names]
        assert [(name, item) for name, item in missed if item not in lost[name]] == []
