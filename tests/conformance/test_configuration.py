"""Every field of every model of a mixture: what it takes, and that anything else is refused in one line.

SECTIONS: model ─▶ where it stands in a file, and for each of its keys the values at the edges of what it takes
a wrong value  ─▶  mixture.yaml:LINE: dotted.path: found …, expected …
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from datapipe.config import Mixture, StageUse, load_mixture
from datapipe.config.yaml import dotted
from datapipe.errors import UserError

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Values:
    """Values that a key takes, and values that it refuses."""

    right: list[Any]
    wrong: list[Any]
    needed: bool = False
    beside: Mapping[str, Any] = field(default_factory=dict)
    """Other keys of the section that the right values need."""


def whole(least: int, most: int | None = None, **more: Any) -> Values:
    edges = [] if most is None else [most]
    return Values(
        [least, *edges], [least - 1, *[edge + 1 for edge in edges], least + 0.5, True, str(least), None, [least]], **more
    )


def number(least: float = 0, *, above: float | None = None, none: bool = True) -> Values:
    right, wrong = ([least, 1.5], [least - 1]) if above is None else ([above + 1e-9], [above])
    return Values([*right, *([None] if none else [])], [*wrong, "1", True, [1], {"a": 1}, float("inf")])


def text(*right: str, needed: bool = False, none: bool = False, **more: Any) -> Values:
    wrong = ["", 3, True, ["a"], {"a": "b"}, *([] if none else [None])]
    return Values([*right, *([None] if none else [])], wrong, needed, **more)


def choice(*right: str, none: bool = False, **more: Any) -> Values:
    return Values([*right, *([None] if none else [])], [f"{right[0]}x", "", 3, True, [right[0]], {right[0]: 1}], **more)


def size(least: int = 1, none: bool = False) -> Values:
    wrong = [least - 1, "256M", "", True, ["1GiB"], {"a": 1}]
    return Values([least, "1GiB", *([None] if none else [])], [*wrong, *([] if none else [None])])


def quantity(*right: Any, wrong: tuple[Any, ...]) -> Values:
    return Values([*right, None], [0, "", "x", True, [1], *wrong])


def share(*, below_one: bool = False, above_zero: bool = False, **more: Any) -> Values:
    right = ["0.1%", 0.25, *([] if below_one else [1]), *([] if above_zero else [0])]
    return Values(
        right, [80, "101%", -0.1, "a%", True, [0.5], *([1] if below_one else []), *([0] if above_zero else [])], **more
    )


def flag() -> Values:
    return Values([True, False], ["yes", 1, None, [True]])


def section() -> Values:
    return Values([{}], [3, "x", [1], True])


WEIGHT = Values([0, 0.7, "70%", "1/3"], ["abc", True, -0.7, 1.5e300, None, [1]])
STAGES = Values([[], ["dedup.exact", {"a.b:C": {"k": 1}}]], ["a.b", 3, [3], [{}], ["a b"], [{"a.b": 3}], ["a.b", "a.b"]])


@dataclass(frozen=True)
class Section:
    """A model in a mixture."""

    at: Key
    keys: Mapping[str, Values]
    mixture: Mapping[str, Any] = field(default_factory=dict)
    """What the mixture has beside a name, an output and the source `web`."""


WEB = {"path": "a"}
TOKENIZER = {"tokenizer": {"path": "t.json"}}
PHASES = {"mixture": {"tokens": 100, "phases": [{"until": 1, "weights": {"web": 1}}]}}
SECTIONS = {
    "Mixture": Section(
        (),
        {
            "name": text("m", needed=True),
            "seed": whole(0),
            "output": text("s3://bucket/a", needed=True),
            "max_quarantined": share(),
            "max_unreadable_files": whole(0),
            "validation": share(below_one=True),
            "sources": Values([{"web": WEB}], [{}, ["a"], 3, {"web": 3}, {"we b": WEB}, {"-a": WEB}], needed=True),
            "licenses": Values([[], "unknown", ["MIT", "unknown"]], [3, ["no licence"], [3]]),
            "stages": STAGES,
            "tokenizer": Values(["none", {"train": {}}], ["None", False, {}, {"train": {}, "path": "a"}]),
            "pack": section(),
            "shards": section(),
            "documents": section(),
            "mixture": section(),
            "takedown": text("a.txt", none=True),
            "publish": section(),
            "execution": section(),
        },
    ),
    "Source": Section(
        ("sources", "web"),
        {
            "path": Values(["a", ["a", "b/*"]], ["", [], 3, None, [3], [""], {"a": "b"}], needed=True),
            "prefix": text("https://a.org", none=True),
            "exclude": Values([[], "a", ["a", "b"]], ["", 3, [""], None]),
            "format": Values(["auto", "jsonl", {"csv": {"delimiter": ";"}}], ["", 3, ["csv"], {"csv": 3}, {}]),
            "text": text("content.text"),
            "messages": Values(["turns", ["prompt", "completion"], []], ["", 3, [3], {"a": "b"}, None]),
            "template": Values(
                ["chatml", {"text": "{{ messages }}"}, None], ["", 3, True, ["a"], {}], beside={"messages": "turns"}
            ),
            "learn": choice("all", "assistant", "last", none=True, beside={"messages": "turns"}),
            "tools": text("functions", none=True, beside={"messages": "turns"}),
            "id": text("key"),
            "keep": Values([[], ["url"], {"a": "url"}], ["url", None, [3], ["text"], ["url", "url"], {"a": "u", "b": "u"}]),
            "types": Values([{}, {"url": "date"}], [3, ["a"], {"url": "dates"}, {"urls": "date"}], beside={"keep": ["url"]}),
            "check_fields": flag(),
            "lone_surrogates": choice("quarantine", "replace"),
            "weight": WEIGHT,
            "max_epochs": number(above=0),
            "sample": Values([0.5, "5%", None, {"share": "5%", "of": "cleaned"}], [0, 2, "x", ["a"], {}, {"share": 2}, True]),
            "max_tokens": Values([1, "10B", None], [0, "", "x", True, [1], -1]),
            "strata": Values([None, {"by": "score", "bounds": [1]}], [3, "x", {"by": "text", "bounds": [1]}]),
            "split": Values([None, {"by": ["language"]}, {"by": "language"}], [3, "x", {"by": "text"}, {"by": []}]),
            "repository": Values([None, {"files": "files"}], [3, "x", ["a"], {}, {"files": "a", "group_by": "b"}]),
            "fim": Values([None], [3, "x", ["a"], {"at": "words"}]),
            "document_prefix": Values(
                [None, {"text": "{url}"}], [3, "x", {}, {"text": "none"}, {"text": "{url!r}"}, {"text": "{"}]
            ),
            "max_document_tokens": Values([1, "4k", None], [0, "", "x", True, [1], -1], beside={"messages": "turns"}),
            "longer": choice("cut", "drop", beside={"messages": "turns", "max_document_tokens": 9}),
            "license": Values(["cc-by-4.0", "LicenseRef-mine", None], [3, "cc-by4.0", ["MIT"]]),
            "license_field": Values(["terms", None], ["", 3, "text"]),
            "homepage": Values(["http://a.org", None], ["a.org", "https://", "javascript:alert(1)", "https://a b", 3]),
            "collected": Values(
                ["2024-05-17", "2024-02", 2024, {"from": 2023, "to": "2024-05"}, None],
                ["2024-13", "2023-02-29", True, 24, "", {"from": "2024"}, {"from": "2024-06", "to": "2024-05"}, ["2024"]],
            ),
            "synthetic": Values([True, False, {"model": "m"}], ["no", 3, None, []]),
            "cost": Values([None, {"usd": 0}], [3, "x", {}, {"usd": 1, "usd_per_million_tokens": 1}]),
            "stages": Values([None, *STAGES.right], STAGES.wrong),
            "fingerprint": choice("stat", "content"),
        },
        {"sources": {"web": WEB, "code": WEB}},
    ),
    "SnapshotSource": Section(
        ("sources", "old"),
        {
            "snapshot": text("runs/old", needed=True),
            "version": text("1f2e", none=True),
            "sources": Values([[], ["web"]], ["web", 3, [3]]),
            "weight": WEIGHT,
            "max_epochs": number(above=0),
        },
        {"sources": {"web": WEB, "old": {"snapshot": "runs/old"}}, **TOKENIZER},
    ),
    "SampleSpec": Section(
        ("sources", "web", "sample"),
        {"share": share(above_zero=True, needed=True), "of": choice("input", "cleaned")},
        {"sources": {"web": WEB | {"sample": {"share": 0.5}}}},
    ),
    "StrataSpec": Section(
        ("sources", "web", "strata"),
        {
            "by": Values(["score"], ["", 3, "text", None], needed=True),
            "bounds": Values([[0], [-1.5, 2, 10]], [[], 3, [10, 2], [1, 1], ["a"], [1, "a"]], needed=True),
            "repeat": Values([[], [1, 2]], [3, [1], [1, 2, 3], [1, 0], [1, 1.5]]),
            "order": choice("shuffled", "ascending", "descending"),
        },
        {"sources": {"web": WEB | {"strata": {"by": "score", "bounds": [1]}}}},
    ),
    "SplitSpec": Section(
        ("sources", "web", "split"),
        {
            "by": Values(
                [["language"], "language", [{"column": "score", "bounds": [2, 4]}]], [[], 3, ["id"], None], needed=True
            ),
            "weights": Values(
                [None, {"default": 1, "en": "1/3"}, "tokens * 2", "w.csv"], [3, [1], {"en": -1}, {"a/b": 1}, "x +"]
            ),
            "repeat": Values([{}, {"en": 2.5, "default": 0}], [3, {"en": -1}, {"en": "x"}, {"a/b": 1}]),
            "max_epochs": Values([{}, {"e*": 4}], [3, {"en": 0}, {"en": "x"}, {"a/b": 1}]),
            "max_tokens": Values([{}, {"e*": "1B", "default": 1}], [3, {"en": 0}, {"en": "x"}, {"a/b": 1}]),
        },
        {"sources": {"web": WEB | {"split": {"by": ["language"]}}}},
    ),
    "AxisSpec": Section(
        ("sources", "web", "split", "by", 0),
        {
            "column": Values(["score"], ["", 3, "text", None], needed=True),
            "bounds": Values([[], [0], [-1.5, 2, 10]], [3, [10, 2], [1, 1], ["a"], [1, "a"]]),
            "quantiles": Values([2, 100, None], [1, 101, 2.5, True, "2", [2]]),
        },
        {"sources": {"web": WEB | {"split": {"by": [{"column": "quality"}]}}}},
    ),
    "RepositorySpec": Section(
        ("sources", "web", "repository"),
        {
            "files": text("blobs", none=False),
            "group_by": Values([None], ["", 3, "repo"]),  # not beside files
            "path": text("file"),
            "text": text("body"),
            "name": text("repo", none=True),
            "license": text("license", none=True),
            "order": choice("path", "random", "given"),
            "max_bytes": Values([1, "1MB", "64MiB"], [0, "65MiB", "x", None]),
            "separators": Values([None, [], ["a", "b"], ["", "b"]], [3, "a", ["a"], [3, "b"]]),
        },
        {"sources": {"web": WEB | {"repository": {"files": "files"}}}, **TOKENIZER},
    ),
    "FimSpec": Section(
        ("sources", "web", "fim"),
        {
            "rate": share(),
            "spm": share(),
            "at": choice("characters", "tokens"),
            "min_chars": whole(0),
            "tokens": Values([[], ["a", "b", "c"]], [3, "a", ["a", "b"], [3], None]),
        },
        {"sources": {"web": WEB | {"fim": {}}}, **TOKENIZER},
    ),
    "DocumentPrefixSpec": Section(
        ("sources", "web", "document_prefix"),
        {
            "text": Values(["{url}\n", "{{{url}"], ["", 3, "none", "{}", "{a b}", "{url:3}", "{url", None], needed=True),
            "rate": share(),
        },
        {"sources": {"web": WEB | {"document_prefix": {"text": "{url}"}}}},
    ),
    "ChatTemplateSpec": Section(
        ("sources", "web", "template"),
        {
            "text": text("{{ messages }}", needed=True),
            "special_tokens": Values([{}, {"bos_token": "<s>"}], [3, ["a"], {"a": 3}, None]),
            "control_tokens": Values([[], ["<s>"]], [3, "a", [3], None]),
            "lacking": choice("refuse", "text"),
        },
        {"sources": {"web": WEB | {"messages": "turns", "template": {"text": "chatml"}}}},
    ),
    "SyntheticSpec": Section(
        ("sources", "web", "synthetic"),
        {"model": text("m", needed=True), "prompt": text("p", none=True)},
        {"sources": {"web": WEB | {"synthetic": {"model": "m"}}}},
    ),
    "CostSpec": Section(
        ("sources", "web", "cost"),
        {"usd": number(none=False), "usd_per_million_tokens": number(none=False)},
        {"sources": {"web": WEB | {"cost": {}}}},
    ),
    "TokenizerSpec": Section(
        ("tokenizer",),
        {
            "train": Values([None], [3, "x", []]),
            "path": Values(["t.json"], ["", 3, True, ["a"]]),
            "eos": text("</s>", none=True),
            "bos": text("<s>", none=True),
            "pattern": choice("gpt2", "cl100k", "o200k", "llama3", "qwen2", none=True),
            "special_tokens": Values([{"</s>": 7}, None], [3, {}, ["a"], {"a": "b"}, {"a": 1.5}]),
        },
        TOKENIZER,
    ),
    "TokenizerTraining": Section(
        ("tokenizer", "train"),
        {
            "vocab_size": whole(257),
            "sample_bytes": size(),
            "pattern": choice("gpt2", "cl100k", "o200k", "llama3", "qwen2"),
            "eos": text("</s>"),
            "control_tokens": Values([[], ["<|im_start|>", "<|im_end|>"]], [3, "a", [3], None]),
        },
        {"tokenizer": {"train": {}}},
    ),
    "PackSpec": Section(
        ("pack",),
        {
            "sequence_length": Values([2, 1 << 24, [8, 4]], [1, (1 << 24) + 1, "8", True, [], [8, 1], [8, 8], None, 2.5]),
            "method": choice("best_fit", "concat", "buckets"),
            "pool_documents": whole(1),
            "max_padding": share(),
            "min_piece": whole(1, 2048, beside={"method": "buckets"}),
            "bos_aligned": flag(),
        },
        {"tokenizer": {"path": "t.json", "bos": "<s>"}},
    ),
    "ShardsSpec": Section(("shards",), {"format": choice("arrow", "parquet"), "target_bytes": size(4096)}),
    "DocumentsSpec": Section(("documents",), {"format": choice("parquet", "jsonl.zst"), "target_bytes": size(4096)}),
    "PublishSpec": Section(
        ("publish",),
        {
            "min_tokens": quantity(1, "1.5k", "100B", wrong=("1.5", -1)),
            "or_every": quantity(1, "1m", "30min", "6h", "2d", wrong=("0.5s", "1w", -1)),
        },
    ),
    "MixtureSpec": Section(
        ("mixture",),
        {
            "tokens": quantity(1, "100B", 1e9, wrong=("1.5", -5, "100 billion")),
            "phases": Values([[]], [3, "x", [3], [{"until": 1}]]),
            "weighting": Values(["given"], ["givn", "", 3, True]),
            "temperature": Values([1, 2.5], [0.99, "x", True], beside={"weighting": "temperature"}),
            "max_epochs": number(above=0),
            "exhausted": choice("stop", "refuse", "redistribute", beside={"tokens": 9}),
            "max_synthetic": share(),
            "replay": Values([None, {"from": "o", "share": "5%"}], [3, "x", {"from": "o", "share": 1}]),
            "window": whole(0),
        },
        TOKENIZER,
    ),
    "PhaseSpec": Section(
        ("mixture", "phases", 0),
        {
            "until": Values([1, "100%"], [80, "a%", True, None, [1]], needed=True),
            "weights": Values([{"web": 0.5}], [3, ["web"], {}, {"web": 0}, {"web": -1}, {"wbe": 1}], needed=True),
            "schedule": choice("step", "linear"),
        },
        PHASES,
    ),
    "ReplaySpec": Section(
        ("mixture", "replay"),
        {
            "from": text("runs/old", needed=True),
            "version": text("1f2e", none=True),
            "share": share(below_one=True, above_zero=True, needed=True),
        },
        {"mixture": {"replay": {"from": "runs/old", "share": "5%"}}, **TOKENIZER},
    ),
    "ExecutionSpec": Section(
        ("execution",),
        {
            "split_bytes": size(1024),
            "bucket_bytes": size(1024),
            "max_retries": whole(0),
            "max_infrastructure_retries": whole(0),
            "on_crash": choice("fail", "quarantine"),
            "stall_s": number(above=0, none=False),
            "memory": size(64 << 20, none=True),
            "keep_work": choice("none", "resume", "inspect"),
            "check_disk": flag(),
            "cost_per_core_hour": number(),
            "cost_per_node_hour": number(),
            "resources": Values([{}], [3, ["a"], {"a": 3}]),
            "placement": Values(
                [{}, {"pool": "batch"}, {"ray.io/market-type": "spot"}],
                [3, ["a"], {"a": 3}, {"a": ""}, {"a": "!b"}, {"a b": "c"}, {"ray.io/node-id": "a"}],
            ),
        },
    ),
    "Resources": Section(
        ("execution", "resources", "a.b"),
        {"num_cpus": number(none=False), "num_gpus": number(none=False), "memory": size(none=True)},
        {"execution": {"resources": {"a.b": {}}}},
    ),
}

FIELDS = [(model, key) for model, section in SECTIONS.items() for key in section.keys]


def _changed(section: Section, keys: Mapping[str, Any], leave_out: str = "") -> dict[str, Any]:
    """The mixture of a section with some of its keys changed."""
    whole_mixture = json.loads(json.dumps({"name": "m", "output": "o", "sources": {"web": WEB}, **section.mixture}))
    inner: Any = whole_mixture
    for part in section.at:
        inner = inner[part] if isinstance(part, int) else inner.setdefault(part, {})
    inner.update(keys)
    inner.pop(leave_out, None)
    return whole_mixture


def _lines(mixture: Mapping[str, Any], inner: Key, above: Key = ()) -> Iterator[tuple[Key, str]]:
    """The lines of a mixture: a key each down to the keys of `inner`, and whole values in a line below and beside it."""
    for key, value in mixture.items():
        path = (*above, key)
        is_block = isinstance(value, dict) and bool(value) and path == inner[: len(path)]
        written = "" if is_block else json.dumps(value).replace("Infinity", ".inf")
        yield path, f"{'  ' * len(above)}{json.dumps(key)}: {written}"
        if is_block:
            yield from _lines(value, inner, path)


def _written(folder: Path, section: Section, mixture: Mapping[str, Any]) -> tuple[Path, dict[Key, int]]:
    """The file of a mixture, and the line of each of its keys."""
    lines = list(_lines(mixture, section.at))
    path = folder / "mixture.yaml"
    path.write_text("\n".join(line for _, line in lines) + "\n")
    return path, {key: index + 1 for index, (key, _) in enumerate(lines)}


def _nearest(lines: Mapping[Key, int], key: Key) -> str:
    """`:LINE` of a key, or of what stands above it."""
    while key and key not in lines:
        key = key[:-1]
    return f":{lines[key]}" if key else ""


def _refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_mixture(path)
    return str(caught.value)


def _shown(value: Any) -> str:
    """How a message shows the value that it found, if that is no list or mapping."""
    names = {None: "nothing", True: "true", False: "false"}
    return names[value] if value is None or isinstance(value, bool) else repr(value)


def _models(model: Any) -> dict[str, type[BaseModel]]:
    """All models that a mixture is made of, by name. Stages have their own spelling."""
    if isinstance(model, type) and issubclass(model, BaseModel) and model is not StageUse:
        inner = [_models(info.annotation) for info in model.model_fields.values()]
        return {model.__name__: model} | {name: found for models in inner for name, found in models.items()}
    return {name: found for member in get_args(model) for name, found in _models(member).items()}


def test_table_has_every_key_of_every_model() -> None:
    models = _models(Mixture)
    found = {name: {info.alias or key for key, info in model.model_fields.items()} for name, model in models.items()}
    assert found == {name: set(section.keys) for name, section in SECTIONS.items()}
    fields = [(name, key, info) for name, model in models.items() for key, info in model.model_fields.items()]
    assert {(name, info.alias or key) for name, key, info in fields if info.is_required()} == {
        (name, key) for name, key in FIELDS if SECTIONS[name].keys[key].needed
    }


@pytest.mark.parametrize(("model", "key"), FIELDS)
def test_values_at_the_edges_are_read_and_read_back(tmp_path: Path, model: str, key: str) -> None:
    section = SECTIONS[model]
    for value in section.keys[key].right:
        path, _ = _written(tmp_path, section, _changed(section, {**section.keys[key].beside, key: value}))
        mixture = load_mixture(path)
        assert Mixture.model_validate(mixture.model_dump(exclude_none=True)) == mixture


@pytest.mark.parametrize(("model", "key"), FIELDS)
def test_wrong_value_is_refused_in_one_line_with_file_line_path_found_and_expected(
    tmp_path: Path, model: str, key: str
) -> None:
    section = SECTIONS[model]
    for value in section.keys[key].wrong:
        path, lines = _written(tmp_path, section, _changed(section, {**section.keys[key].beside, key: value}))
        (line,) = _refusal(path).splitlines()
        place = re.fullmatch(rf"{re.escape(str(path))}((?::\d+)?): (\S+?|sources\.we b): (.*)", line)
        assert place is not None, line
        own = dotted((*section.at, key))
        assert place[2].startswith(own) and place[1] == _nearest(lines, (*section.at, key)), line
        if not isinstance(value, list | dict) and place[2] == own:
            assert f"found {_shown(value)}, expected " in line or f"'{value}' is " in line, line
        assert re.search(r"expected|'.*' is |is 0|cannot be kept", line, re.I), line


@pytest.mark.parametrize(("model", "key"), FIELDS)
def test_mistyped_key_is_reported_with_the_one_that_was_meant_and_a_needed_one_with_what_it_is(
    tmp_path: Path, model: str, key: str
) -> None:
    section = SECTIONS[model]
    wrong = f"{key[:-1]}_{key[-1]}" if len(key) > 2 else f"{key}{key}"
    path, lines = _written(tmp_path, section, _changed(section, {wrong: 1}))
    line = _refusal(path).splitlines()[0]
    at = (*section.at, wrong)
    assert ": unknown key." in line
    assert line.startswith(f"{path}{_nearest(lines, at)}: {dotted(at)}: ")
    assert f"'{key}'" in line and line.endswith(f": {', '.join(section.keys)}.")
    if section.keys[key].needed and key != "snapshot":
        path, lines = _written(tmp_path, section, _changed(section, {}, leave_out=key))
        told = _refusal(path)
        assert told.startswith(f"{path}{_nearest(lines, section.at)}: {dotted((*section.at, key))}: missing. Expected: ")
        assert "\n" not in told


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab./% 10"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", min_size=1), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.medium
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FIELDS), _ANY)
def test_any_value_anywhere_is_read_or_refused_in_lines_that_name_their_place(
    tmp_path: Path, model_and_key: tuple[str, str], value: Any
) -> None:
    model, key = model_and_key
    section = SECTIONS[model]
    path, _ = _written(tmp_path, section, _changed(section, {key: value}))
    try:
        load_mixture(path)
    except UserError as error:
        for line in str(error).splitlines():
            assert re.match(rf"{re.escape(str(path))}(:\d+)?: [^:]+: \S|… and \d+ more", line), line
