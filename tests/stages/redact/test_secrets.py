"""Secrets in documents are replaced and counted; a user's rules; code and prose without secrets are unchanged."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import zstandard
from pydantic import ValidationError

from datapipe.stage import FilterResult, StageContext
from stages.redact._rules import built_in
from stages.redact.secrets import KINDS, Secrets
from tests.support.global_stages import batch_of
from tests.support.synthetic_secrets import drawn_secrets

pytestmark = pytest.mark.medium


def _process(texts: list[str], seed: int = 1, **options: object) -> FilterResult:
    stage = Secrets.model_validate(options)
    stage.open(StageContext(name="redact.secrets", seed=seed))
    return stage.process(batch_of(texts))


def _texts(texts: list[str], seed: int = 1, **options: object) -> list[str]:
    result = _process(texts, seed, **options)
    return result.columns["text"].to_pylist() if "text" in result.columns else texts


PASSWORD = "q8Zt5Lw2Rx9Vb3Kd"
DRAWN = drawn_secrets(3)
ONE_OF_EACH = [*(f"é x = '{secret}'\n" for _, secret in DRAWN), f"password = '{PASSWORD}'"]
GITHUB, GITLAB = (next(secret for kind, secret in DRAWN if kind == name) for name in ("github", "gitlab"))


def test_secrets_tag_replaces_and_counts_each_kind() -> None:
    result = _process([*ONE_OF_EACH, "clean"])
    kinds = [*(kind for kind, _ in DRAWN), "assignment", "none"]
    assert {*kinds, "custom"} - {"none"} == set(Secrets.counts)
    for name in Secrets.counts:
        assert result.columns[name].to_pylist() == [int(kind == name) for kind in kinds]
    tags = ["<PRIVATE_KEY>" if kind == "private_key" else "<SECRET>" for kind, _ in DRAWN]
    assert result.columns["text"].to_pylist() == [*(f"é x = '{tag}'\n" for tag in tags), "password = '<SECRET>'", "clean"]


def test_secrets_rules_are_of_known_kinds_and_have_ids_of_their_own() -> None:
    rules = [*built_in()["issuers"], *built_in()["assignments"]]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert {rule.get("kind", "assignment") for rule in rules} == set(KINDS) - {"custom"}


@pytest.mark.medium
def test_secrets_kinds_that_are_not_chosen_stay() -> None:
    for kinds in (Secrets.counts[:-1:2], Secrets.counts[1:-1:2], ("github",)):
        result = _process(ONE_OF_EACH, kinds=kinds)
        assert tuple(name for name in Secrets.counts if sum(result.columns[name].to_pylist()) > 0) == kinds
    for around in ("secret = 'https://h/{}'", "password='x.{}'", "token='{}'"):
        assert GITHUB not in _texts([around.format(GITHUB)], kinds=("github",))[0]


@pytest.mark.parametrize("replace", ["tag", "fake"])
def test_secrets_redacting_twice_changes_nothing(replace: str) -> None:
    once = _texts([*ONE_OF_EACH, " ".join(ONE_OF_EACH), "\n".join(ONE_OF_EACH * 2)], replace=replace)
    assert "text" not in _process(once, replace=replace).columns


def test_secrets_fake_is_the_same_for_the_same_secret_and_delete_writes_nothing() -> None:
    texts = [f"a = '{GITHUB}'", f"b: {GITHUB}", f"{GITLAB}"]
    first, second, third = (text.split()[-1].strip("'") for text in _texts(texts, replace="fake"))
    assert first == second != third
    assert first.startswith("EXAMPLE-")
    assert _texts(texts, seed=2, replace="fake")[1] != f"b: {second}"
    assert _texts(texts, replace="delete") == ["a = ''", "b: ", ""]


def test_secrets_copies_go_with_the_secret_and_common_words_stay() -> None:
    text = f"password = '{PASSWORD}' # é{PASSWORD}x\nother: {PASSWORD}"
    assert _texts([text, f"x {PASSWORD}"]) == ["password = '<SECRET>' # é<SECRET>x\nother: <SECRET>", f"x {PASSWORD}"]
    assert sum(_process([text]).columns["assignment"].to_pylist()) == 3
    summer = 'password: "summer"\nIn summer, "correcthorsebattery" pass: "correcthorsebattery"'
    assert _texts([summer]) == [summer]


def test_secrets_more_hits_than_allowed_drop_the_document() -> None:
    texts = ["none", f"{GITHUB} {GITLAB}", GITHUB]
    result = _process(texts, max_hits=1)
    assert (result.keep.tolist(), result.rule.tolist(), result.value.tolist()) == ([True, False, True], [-1, 0, -1], [0, 2, 1])
    assert _process(texts, max_hits=0).keep.tolist() == [True, False, False]
    assert _process(texts, max_hits=1, kinds=["gitlab"]).keep.all() and _process(texts).keep.all()


RULES = r"""
title = "Our rules"
[extend]
useDefault = true
disabledRules = ["github-pat"]
[[rules]]
id = "acme"
description = "Acme's keys"
regex = '''(?P<name>acme)(?i)[-_](KEY|token)\s*=\s*([[:alnum:]]{8,}|none)(?:\s|\z)'''
secretGroup = 3
entropy = 2.5
keywords = ["acme"]
[[rules.allowlists]]
regexTarget = "line"
regexes = ['''^# test''']
[[rules]]
id = "badge"
regex = '''B-\d{4}-\d{4}'''
path = '''\.txt$'''
[allowlist]
stopwords = ["summer"]
[[allowlists]]
targetRules = ["badge"]
regexes = ['''a8f3k2m9''', '''B-0000''']
"""


def _rules(folder: Path, text: str) -> dict[str, str]:
    (folder / "rules.toml").write_text(text)
    return {"rules": str(folder / "rules.toml")}


def test_secrets_rules_of_a_user_in_the_form_of_gitleaks(tmp_path: Path) -> None:
    options = _rules(tmp_path, RULES)
    texts = [
        "é acme_key = a8f3k2m9 x",
        "acme-TOKEN=a8f3k2m9",
        "ACME_KEY = a8f3k2m9 ",
        "acme_key = aaaaaaaa ",
        "# test acme_key = a8f3k2m9 ",
        "acme_key = summer42x ",
        "B-0000-0000 is nobody's",
        f"{'é' * 3000} B-1234-5678 {GITHUB} {GITLAB} <SECRET>",
    ]
    expected = ["é acme_key = <SECRET> x", "acme-TOKEN=<SECRET>", *texts[2:7]]
    result = _process(texts, **options)
    assert result.columns["text"].to_pylist() == [*expected, f"{'é' * 3000} <SECRET> {GITHUB} <SECRET> <SECRET>"]
    assert result.columns["custom"].to_pylist() == [1, 1, 0, 0, 0, 0, 0, 1]
    assert "text" not in _process(result.columns["text"].to_pylist(), **options).columns
    assert _texts(texts, **options, kinds=["github"]) == texts
    stage = Secrets.model_validate(options)
    for noted in ("path", "keywords", "MB/s"):
        assert any(noted in note for note in stage.notes())
    assert options["rules"] in stage.input_files()
    assert pickle.loads(pickle.dumps(stage)).process(batch_of(texts)).columns["text"].to_pylist()[0] == expected[0]


def test_secrets_rules_add_to_the_built_in_ones_unless_their_file_reports_otherwise(tmp_path: Path) -> None:
    rule = "[[rules]]\nid = 'b'\nregex = 'B-[0-9]+'\nkeywords = ['b-']\n"
    assert _texts([f"B-12 {GITHUB}"], **_rules(tmp_path, rule)) == ["<SECRET> <SECRET>"]
    options = _rules(tmp_path, f"[extend]\nuseDefault = false\n{rule}")
    assert _texts([f"B-12 {GITHUB}"], **options) == [f"<SECRET> {GITHUB}"]
    assert any("built-in" in note for note in Secrets.model_validate(options).notes())


A_RULE = "[[rules]]\nid='a'\nregex="


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ("[[rules]]\nid='a'\nregexp='x'", "'regexp'"),
        ("[[rules]]\nregex='x'", "rule 1"),
        (f"{A_RULE}'(a'", "'a'"),
        (f"{A_RULE}'x\\C'", "'a'"),
        (f"{A_RULE}'x'\nsecretGroup=1", "secretGroup"),
        (f"{A_RULE}'x'\nentropy='high'", "'high'"),
        (f"{A_RULE}'x'\nkeywords='x'", "keywords"),
        (f"{A_RULE}'x'\n[[rules.allowlists]]\nregexTarget='file'", "regexTarget"),
        (f"{A_RULE}'x'\n{A_RULE}'y'", "'a'"),
        ("[rules]\nid='a'", "[[rules]]"),
        ("[extend]\nuseDefault=true\ndisabledRules=['github-pad']", "'github-pad'"),
        ("[extend]\npath='other.toml'", "path"),
        ("[extend]\nuseDefault='yes'", "useDefault"),
        ("title='x'", "no rule"),
        ("not toml", "TOML"),
    ],
)
def test_secrets_rules_that_cannot_be_read_name_file_and_rule(tmp_path: Path, rules: str, named: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Secrets.model_validate(_rules(tmp_path, rules))
    assert "rules.toml" in str(raised.value) and named in str(raised.value)


@pytest.mark.parametrize(
    "options", [{"kinds": ["passwords"]}, {"kinds": []}, {"min_entropy": -1}, {"max_hits": -1}, {"rules": "missing.toml"}]
)
def test_secrets_options_that_nothing_fits_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Secrets.model_validate(options)


@pytest.mark.parametrize(
    ("regex", "found", "left"),
    [
        ("a(?i)b|c", ["aB", "C"], ["AB"]),
        (r"x[[:digit:]]\z", ["x1"], ["x1 "]),
        (r"k(?s:.)\Q.*\E", ["k\n.*"], ["kab"]),
        (r"(?<n>qz{,2})", ["qz{,2}"], ["qzz"]),
        (r"v[\w&&~~-]+$", ["va-b"], ["va!"]),
        (r"key(?:a+){0,9}$", ["key" + "a" * 60], ["key" + "a" * 60 + "!"]),
        (r"(?:[\w.-]*key)+=", ["key" * 3000 + "="], ["key" * 3000]),
        (r"(?s)-----BEGIN K.*?-----END K", ["-----BEGIN K" + "a\n" * 4000 + "-----END K"], ["-----BEGIN K" + "a" * 9]),
        (r"\p{Greek}{3}", ["αβγ"], ["abc"]),
        (r"(?i)w(?-i)X", ["WX", "wX"], ["Wx"]),
        (r"u(?:.|\s){0,200}?v", ["u \n" + " " * 150 + "v"], ["u" + " " * 300 + "w"]),
        (r"\x{e9}\d{4}", ["é1234"], ["e1234"]),
    ],
)
def test_secrets_rules_in_the_syntax_of_go(tmp_path: Path, regex: str, found: list[str], left: list[str]) -> None:
    options = _rules(tmp_path, f"[[rules]]\nid = 'a'\nregex = '''{regex}'''\n")
    assert _texts(found + left, **options) == ["<SECRET>"] * len(found) + left


def test_secrets_rules_whose_finds_overlap_leave_no_rest(tmp_path: Path) -> None:
    rules = "".join(f"[[rules]]\nid = '{name}'\nregex = '{name}'\n" for name in ("abcd", "cdef", "ab", GITHUB[-6:] + "!+"))
    assert _texts(["xabcdefx ab", f"{GITHUB}!!"], **_rules(tmp_path, rules)) == ["x<SECRET>x <SECRET>", "<SECRET>"]


def _strings(record: Any) -> list[str]:
    """Every text in a JSON value."""
    if isinstance(record, dict | list):
        return [text for one in (record.values() if isinstance(record, dict) else record) for text in _strings(one)]
    return [record] if isinstance(record, str) else []


def _all_texts(path: Path) -> list[str]:
    with zstandard.open(path, "rb") if path.suffix == ".zst" else gzip.open(path) as stream:
        text = stream.read().decode("utf-8", errors="replace")
    if ".jsonl" in path.name:
        return [found for line in text.split("\n") if line for found in _strings(json.loads(line))]
    return _strings(json.loads(text)) if ".json" in path.name else [text]


@pytest.mark.real
def test_secrets_code_and_prose_hold_two_copies_of_one_password(real_data: Path) -> None:
    """Functions, solutions, a manual and web pages: 48 MB. The password is the default of a server's configuration."""
    files = [*sorted((real_data / "code").iterdir()), *sorted((real_data / "prose").glob("*.zst"))]
    texts = [text for path in files for text in _all_texts(path)]
    assert sum(map(len, texts)) > 45_000_000
    result = _process(texts)
    assert {name: found for name in Secrets.counts if (found := sum(result.columns[name].to_pylist()))} == {"assignment": 2}
