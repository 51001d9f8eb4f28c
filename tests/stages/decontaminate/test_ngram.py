"""decontaminate.ngram: what each profile drops and cuts, the rule of short items, shared n-grams, attribution."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from datapipe.errors import UserError
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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("profile", ["strict", "coverage"])
def test_items_are_found_in_every_form_of_their_text(stage: Callable[..., Ngram], form: str, profile: str) -> None:
    names = [str(item["id"]) for item in ITEMS]
    texts = [f"{item['question']} {item.get('answer', '')}" for item in ITEMS]
    if form in ("without punctuation", "spaces for punctuation"):  # vowel signs are no punctuation
        names, texts = zip(*((name, text) for name, text in zip(names, texts) if name not in ("thai", "hindi")))
    documents = [f"{FILLER}{FORMS[form](text)} {FILLER}" for text in texts]
    assert found_in(stage(*ITEMS, profile=profile), *documents) == [[name] for name in names]


def test_gpt3_cuts_two_hundred_characters_on_both_sides_and_drops_pieces_below_two_hundred(
    stage: Callable[..., Ngram],
) -> None:
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
    words = [(word.strip(".").lower(), start) for word, start in _split(text) if word.strip(".")]
    matches = []
    for first in range(len(words) - 12):
        if tuple(word for word, _ in words[first : first + 13]) in grams:
            matches.append((words[first][1], words[first + 12][1] + len(words[first + 12][0])))
    if len(matches) > 10:
        return None
    is_cut = [any(start - 200 <= place < stop + 200 for start, stop in matches) for place in range(len(text))]
    pieces = "".join("\0" if cut else character for character, cut in zip(text, is_cut)).split("\0")
    kept = [piece for piece in pieces if len(piece) >= 200] if matches else [text]
    return "\n\n".join(kept) if kept else None


def _split(text: str) -> list[tuple[str, int]]:
    found, place = [], 0
    for word in text.split(" "):
        found.append((word, place))
        place += len(word) + 1
    return found


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


def _edited(first: int, step: int, count: int) -> str:
    """LONG_WORDS with `count` words replaced."""
    words = LONG_WORDS.split()
    for place in range(first, len(words), step)[:count]:
        words[place] = "zzz"
    return " ".join(words)


def test_coverage_finds_items_with_few_edits_and_with_many_by_a_low_threshold(stage: Callable[..., Ngram]) -> None:
    coverage = stage(LONG, profile="coverage")
    assert (coverage.num_words, stage(LONG, profile="strict").num_words) == (5, 13)
    texts = [f"{FILLER}{_edited(12, 5, count)} {FILLER}" for count in (1, 9)]
    assert found_in(coverage, *texts) == [["long"], []]
    everywhere = _edited(11, 12, 99)
    assert found_in(stage(LONG, profile="strict"), everywhere) == [[]]
    assert found_in(stage(LONG, profile="coverage", min_coverage=0.5), everywhere) == [["long"]]
    words = LONG_WORDS.split()  # n-grams count within one passage
    assert found_in(coverage, f"{' '.join(words[:30])} {FILLER} {' '.join(words[30:])}") == [[]]


README_ITEM = {
    "question": "In which year was the windmill on the hill above Brandt, a village in the north, rebuilt by its owners?",
    "answer": "1874",
}
README_WHOLE = " ".join(README_ITEM.values())


@pytest.mark.parametrize(
    ("text", "outcomes"),
    [
        (" ".join(README_WHOLE.split()[:13]), "cut dropped kept"),
        (README_WHOLE, "cut dropped dropped"),
        (f"{README_WHOLE} {README_WHOLE}", "dropped dropped dropped"),
        (README_WHOLE.replace("Brandt", "Branth"), "kept kept kept"),
        (FORMS["full width"](README_WHOLE.upper().replace(" ", "\n")), "cut dropped dropped"),
        ("on the hill above Brandt, a village in the north", "kept kept kept"),
    ],
)
def test_profiles_do_what_the_readme_shows(stage: Callable[..., Ngram], text: str, outcomes: str) -> None:
    document, seen = f"{FILLER}{text} {FILLER}", []
    for profile in ("gpt3", "strict", "coverage"):
        result = stage(README_ITEM, profile=profile).process(batch([document]))
        is_cut = "text" in result.columns and result.columns["text"].to_pylist() != [document]
        seen.append("dropped" if not result.keep[0] else "cut" if is_cut else "kept")
    assert " ".join(seen) == outcomes


INNER = {"id": "inner", "question": " ".join(QUESTION.split()[:15]), "answer": "a ship"}
OUTER = {"id": "outer", "question": QUESTION, "answer": "1874"}
SAME = [{"id": name, "question": QUESTION, "answer": answer} for name, answer in (("a", "1874"), ("b", "eighteen"))]
WRONG = " ".join(LONG_WORDS.split()[:20])
CHOICE = {"id": "choice", "question": QUESTION, "choices": ["1874", WRONG], "answer": 0}
FAR = " ".join(FILLER.split()[:80])


@pytest.mark.parametrize(
    ("items", "texts", "names"),
    [
        # a short item is found with its answer near behind it, and not alone
        ([SHORT], [WHOLE_SHORT, f"Q: {SHORT['question']}\nA. Iron\nB. {SHORT['answer']}\nAnswer: B"], [["short"], ["short"]]),
        ([SHORT], [SHORT["question"], f"{SHORT['answer']} {SHORT['question']}"], [[], []]),
        ([SHORT], [f"{SHORT['question']} {FAR} {SHORT['answer']}"], [[]]),
        (SAME, [f"{FILLER}{QUESTION}"], [["a", "b"]]),
        # a question inside of another one is found as a whole
        ([INNER, OUTER], [f"{INNER['question']} {FILLER}", f"{INNER['question']}: a ship. {FILLER}"], [[], ["inner"]]),
        ([CHOICE], [f"{FILLER}{WRONG}"], [["choice"]]),
        # ids that are not distinct give way to rows
        ([{"id": "same", "question": QUESTION}, {"id": "same", "question": LONG_WORDS}], [LONG_WORDS], [["1"]]),
    ],
)
def test_items_beside_and_inside_of_others_are_found(
    stage: Callable[..., Ngram], items: list[dict[str, object]], texts: list[str], names: list[list[str]]
) -> None:
    assert found_in(stage(*items, profile="strict"), *texts) == names


def test_items_below_the_least_words_are_listed_as_undetectable(stage: Callable[..., Ngram]) -> None:
    whole = f"{TINY['question']} {TINY['answer']}"
    assert found_in(stage(profile="strict"), whole) == [[]]
    [listed] = stage().searched_lists()
    assert (listed.name, listed.entries, listed.undetectable) == ("items", 4, ("tiny",))
    assert found_in(stage(profile="strict", min_words=6), whole) == [["tiny"]]
    assert stage(min_words=6).searched_lists()[0].undetectable == ()


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
    made = Ngram(against=(str(tmp_path / f"*{ending}"),), profile="strict")
    assert made.input_files() == (path,)
    assert found_in(made, QUESTION, WHOLE_SHORT) == [["windmill"], ["short"]]
    assert made.searched_lists()[0].name == "items"


def test_named_fields_are_the_only_ones_that_count(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", [{"frage": LONG_WORDS, "question": QUESTION, "nr": "x7"}])
    made = Ngram.model_validate(
        {"against": ({"path": path, "name": "own", "question": "frage", "id": "nr"},), "profile": "strict"}
    )
    assert found_in(made, QUESTION, LONG_WORDS) == [[], ["x7"]]
    assert made.searched_lists()[0].name == "own"


def test_stage_without_texts_to_search_for_keeps_everything(stage: Callable[..., Ngram]) -> None:
    made = stage({"question": ""}, {"question": "?"}, profile="strict")
    assert made.process(batch([FILLER, "", "?"])).keep.all()
    assert made.searched_lists()[0].undetectable == ("0", "1")
    assert isinstance(made.process(batch([])).findings, pa.RecordBatch)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.jsonl", b'{"number": 1}\n', "number"),
        ("a.jsonl", b"\n", "a.jsonl"),
        ("a.jsonl", b'{"question": "a"}\nnot json\n', "line 2"),
        ("a.jsonl", b"[1]\n", "int"),
        ("a.jsonl.gz", b"plain", "a.jsonl.gz"),
        ("a.txt", b"x", "a.txt"),
        ("a.parquet", b"PAR1", "a.parquet"),
    ],
)
def test_files_that_are_no_evaluation_files_are_refused(tmp_path: Path, name: str, content: bytes, named: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=named):
        Ngram(against=(str(tmp_path / name),)).notes()


def test_missing_files_fields_and_double_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="jsonl"):
        Ngram(against=(str(tmp_path / "*.jsonl"),)).input_files()
    path = write(tmp_path / "items.jsonl", [WINDMILL])
    with pytest.raises(UserError, match="'frage'"):
        Ngram.model_validate({"against": ({"path": path, "question": "frage"},)}).notes()
    with pytest.raises(UserError, match="'items'"):
        Ngram(against=(path, path)).notes()
    for options in ({"profile": "strict", "max_matches": 3}, {"min_coverage": 0.5}):  # which the profile does not read
        with pytest.raises(ValueError, match="profile"):
            Ngram.model_validate({"against": (path,), **options})
