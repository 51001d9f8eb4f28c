"""The whole way from a file to a Mixture, and what is refused because two keys do not go together.

That every key refuses every wrong value in one line is in tests/conformance/test_configuration.py.
"""

import glob
import re
from fractions import Fraction
from pathlib import Path

import pytest

from datapipe.config import Mixture, StageUse, load_mixture, starter_mixture
from datapipe.errors import UserError

GOOD = """\
name: web-and-code
seed: 17
output: runs/web-and-code
max_quarantined: 0.1%
validation: 0.1%
sources:
  web:
    path: data/web/*.jsonl.zst
    keep: [url, date]
    weight: 0.7
    max_epochs: 4
    license: cc-by-4.0
  code:
    path: [data/a/*.parquet, data/b/*.parquet]
    format: parquet
    weight: 0.3
    synthetic: false
    stages:
      - dedup.exact
stages:
  - normalize.unicode
  - filter.language: {keep: [en], min_score: 0.65}
  - dedup.minhash
  - my_company.clean:DropBoilerplate: {min_lines: 3}
tokenizer:
  train: {vocab_size: 32000}
pack: {sequence_length: 2048, method: best_fit}
shards: {format: arrow, target_bytes: 256MiB}
mixture:
  tokens: 100B
  phases:
    - {until: 80%, weights: {web: 0.8, code: 0.2}}
    - {until: 100%, weights: {web: 0.4, code: 0.6}}
"""
SHORT = "name: a\noutput: b\nsources: {web: {path: c}}\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "mixture.yaml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str, *overrides: str) -> str:
    path = written(folder, text)
    with pytest.raises(UserError) as caught:
        load_mixture(path, overrides)
    return str(caught.value).replace(f"{path}:", "")


def test_mixture_is_read_as_it_is_written(tmp_path: Path):
    mixture = load_mixture(written(tmp_path, GOOD))
    web, code = mixture.sources["web"], mixture.sources["code"]
    assert (mixture.name, mixture.seed, mixture.output) == ("web-and-code", 17, "runs/web-and-code")
    assert (mixture.max_quarantined, mixture.validation) == (0.001, 0.001)
    assert (web.path, web.keep) == (("data/web/*.jsonl.zst",), {"url": "url", "date": "date"})
    assert (web.weight, web.max_epochs, web.license) == (Fraction(7, 10), 4, "CC-BY-4.0")
    assert (code.path, code.format.to_data()) == (("data/a/*.parquet", "data/b/*.parquet"), "parquet")
    assert code.stages == (StageUse(name="dedup.exact", alias="dedup.exact"),)
    options = {"keep": ["en"], "min_score": 0.65}
    assert mixture.stages[1] == StageUse(name="filter.language", alias="filter.language", options=options)
    assert (mixture.shards.target_bytes, mixture.mixture.tokens) == (256 * 1024**2, 10**11)
    assert [phase.until for phase in mixture.mixture.phases] == [Fraction(4, 5), Fraction(1)]


def test_empty_sections_are_the_defaults(tmp_path: Path):
    empty = "stages:\ntokenizer:\npack:\nshards:\ndocuments:\nmixture:\npublish:\nexecution:\n"
    assert load_mixture(written(tmp_path, SHORT + empty)) == load_mixture(written(tmp_path, SHORT))


def test_environment_overrides_and_output_come_in_that_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CORPUS", "/corpora")
    path = written(tmp_path, GOOD.replace("path: data/web", "path: ${CORPUS}/web"))
    overrides = ["output=x", "sources.code.path=${CORPUS}/code", "pack.sequence_length=4", "pack.sequence_length=512"]
    mixture = load_mixture(path, overrides, output="s3://bucket/run")
    assert mixture.sources["web"].path == ("/corpora/web/*.jsonl.zst",)
    assert mixture.sources["code"].path == ("/corpora/code",)
    assert (mixture.pack.sequence_length, mixture.output) == ((512,), "s3://bucket/run")
    assert load_mixture(written(tmp_path, "name: a\nsources: {web: {path: c}}\n"), output="runs/a").output == "runs/a"
    with pytest.raises(UserError, match=r"^--output: output: "):
        load_mixture(path, output="")


def test_every_value_knows_where_it_was_written(tmp_path: Path):
    path = written(tmp_path, GOOD)
    mixture = load_mixture(path, ["pack.method=concat"])
    assert mixture.where("sources", "web", "path") == f"{path}:8: sources.web.path"
    assert mixture.where("sources", "web", "fingerprint") == f"{path}:7: sources.web.fingerprint"
    assert mixture.where("pack", "method") == "--set: pack.method"
    assert [use.where for use in mixture.stages[:2]] == [f"{path}:21: stages[0]", f"{path}:22: stages[1]"]
    assert mixture.stages_of("code")[0].where == f"{path}:19: sources.code.stages[0]"


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ("seed: 17", "seed: 17\nseed: 18", "3: seed"),
        ("tokens: 100B", f"tokens: {'9' * 400}B", "30: mixture.tokens"),
        ("seed: 17", "licenses: [cc0-1.0]", "12: sources.web.license"),
        ("path: data/web/*.jsonl.zst", "path: ${DATAPIPE_NOT_SET}/x", "8: sources.web.path"),
        ("format: arrow", "format: megatron", "28: shards.format"),
        ("2048, method: best_fit", "3000, method: buckets", "27: pack.sequence_length"),
        ("2048, method: best_fit", "[2048, 64], method: buckets, min_piece: 256", "27: pack.min_piece"),
        ("method: best_fit", "method: best_fit, min_piece: 256", "27: pack.min_piece"),
        ("method: best_fit", "method: concat, max_padding: 1%", "27: pack.max_padding"),
        ("method: best_fit", "method: concat, bos_aligned: true", "27: pack.bos_aligned"),
        ("method: best_fit", "bos_aligned: true", "27: pack.bos_aligned"),  # a trained tokenizer has no bos
        ("  train: {vocab_size: 32000}", "  train: {}\n  path: t.json", "25: tokenizer"),
        ("  train: {vocab_size: 32000}", "  eos: </s>", "25: tokenizer"),
        ("  train: {vocab_size: 32000}", "  train: {}\n  eos: </s>", "27: tokenizer.eos"),
        ("  train: {vocab_size: 32000}", "  train: {}\n  bos: <s>", "27: tokenizer.bos"),
        ("  train: {vocab_size: 32000}", "  train: {}\n  pattern: cl100k", "27: tokenizer.pattern"),
        ("  train: {vocab_size: 32000}", "  train: {}\n  special_tokens: {a: 1}", "27: tokenizer.special_tokens"),
        ("  tokens: 100B\n", "", "29: mixture.tokens"),
        ("until: 80%", "until: 0", "32: mixture.phases[0].until"),
        ("until: 80%", "until: 100%", "33: mixture.phases[1].until"),
        ("until: 100%", "until: 90.5%", "33: mixture.phases[1].until"),
        ("{web: 0.8, code: 0.2}", "{wbe: 0.8, code: 0.2}", "32: mixture.phases[0].weights.wbe"),
        ("{web: 0.8, code: 0.2}", "{web: 0}", "32: mixture.phases[0].weights"),
        ("tokens: 100B", "tokens: 100B\n  weighting: temperature\n  temperature: 2", "33: mixture.phases"),
        ("tokens: 100B", "tokens: 100B\n  replay: {from: o, share: 1%}", "26: tokenizer.train"),
        ("synthetic: false", "strata: {by: score, bounds: [2, 10], repeat: [1, 2]}", "17: sources.code.strata.repeat"),
        ("- dedup.minhash", "- filter.language", "23: stages[2]"),
        ("- dedup.minhash", "- filter.length:\n    min_words: 3", "23: stages[2]"),
        ("- dedup.minhash", "- filter.length: {as: 'a b'}", "23: stages[2].filter.length.as"),
        (GOOD[GOOD.index("sources") :], "sources: {a: {path: b, weight: 0}}\n", "6: sources"),
        (GOOD[GOOD.index("  tokens") :], "  exhausted: refuse\n", "29: mixture.tokens"),
        (GOOD[GOOD.index("  tokens") :], "  weighting: temperature\n", "29: mixture.temperature"),
        (GOOD[GOOD.index("  tokens") :], "  weighting: unimax\n", "29: mixture.tokens"),
        (GOOD[GOOD.index("  tokens") :], "  temperature: 2\n", "30: mixture.temperature"),
        (
            GOOD[GOOD.index("  tokens") :],
            "  replay: {from: o, share: 1%}\n  weighting: unimax\n  tokens: 9\n",
            "30: mixture.replay",
        ),
    ],
)
def test_keys_that_do_not_go_together_are_refused_with_their_lines(tmp_path: Path, before: str, after: str, place: str):
    assert before in GOOD
    assert refusal(tmp_path, GOOD.replace(before, after, 1)).startswith(f"{place}: ")


@pytest.mark.parametrize("value", ["a\0b", "\ud800", Path("a\0b"), 10**301])
def test_value_of_a_program_that_no_file_holds_is_refused_with_its_key(value: object):
    for arguments in [{"mixture": {"name": value}}, {"mixture": {"name": "a"}, "overrides": {"name": value}}]:
        with pytest.raises(UserError, match="name: found "):
            load_mixture(**arguments)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="output: found "):
        load_mixture({"name": "a"}, {}, "a\0b")


def test_weights_that_a_weighting_computes_are_refused_for_each_source(tmp_path: Path):
    text = GOOD.partition("  phases:")[0] + "  weighting: unimax\n"
    places = [line.split(": ")[:2] for line in refusal(tmp_path, text).splitlines()]
    assert places == [["10", "sources.web.weight"], ["16", "sources.code.weight"], ["13", "sources.code.max_epochs"]]
    buckets = text.replace("unimax", "given").replace("best_fit", "buckets").replace("seed: 17", "seed: 1")
    strata = buckets.replace("license: cc-by-4.0", "strata: {by: score, bounds: [1]}")
    assert refusal(tmp_path, strata).startswith("12: sources.web.strata: ")


def test_all_problems_are_listed(tmp_path: Path):
    text = GOOD.replace("weight: 0.7", "wieght: 0.7").replace("seed: 17", "seed: x").replace("2048", "one")
    lines = refusal(tmp_path, text).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["sources.web.wieght", "seed", "pack.sequence_length"]
    assert "Did you mean 'arrow'?" in refusal(tmp_path, GOOD.replace("format: arrow", "format: arow"))
    many = refusal(tmp_path, GOOD + "".join(f"k{number}: 1\n" for number in range(14))).splitlines()
    assert (len(many), many[-1]) == (11, "… and 4 more.")
    unknown_first = refusal(tmp_path, GOOD.replace("name: web", "nmae: web")).splitlines()
    assert unknown_first[0].startswith("1: nmae: ") and "name: missing" in unknown_first[1]


def test_starter_shows_every_option_with_a_comment():
    within = "until weights schedule temperature by bounds repeat order num_cpus num_gpus memory model prompt usd "
    within += "usd_per_million_tokens snapshot version from share rate spm at min_chars lacking files group_by max_bytes "
    within += "separators of column quantiles"
    assert all(f"{name}: " in starter_mixture() for name in within.split())
    shown = {*re.findall(r"^[ #-]*([a-z_]+):.*# ", starter_mixture(), re.MULTILINE), *within.split()}
    schema = Mixture.model_json_schema()
    options = {name for model in (schema, *schema["$defs"].values()) for name in model["properties"]}
    sections = {"sources", "pack", "shards", "mixture", "tokenizer"}
    assert options - sections <= shown


def test_starter_with_its_commented_options_switched_on_is_a_mixture_too(tmp_path: Path):
    other_tokenizer = "path: tokenizer|bos: <s>|eos: </s>|pattern: cl100k|special_tokens:"
    text = re.sub(rf"^( *)# (?=[a-z_]+:)(?!{other_tokenizer})", r"\1", starter_mixture(), flags=re.MULTILINE)
    text = re.sub(r"^( *)#   (?=dedup)", r"\1  ", text, flags=re.MULTILINE)
    text = re.sub(r"^( *)#   - ", r"\1  - ", text, flags=re.MULTILINE)
    text = re.sub(r"^( *)# - ", r"\1- ", text, flags=re.MULTILINE)
    path = tmp_path / "mixture.yaml"
    path.write_text(text)
    mixture = load_mixture(path)
    assert all(glob.glob(pattern) for source in mixture.sources.values() for pattern in source.path)
    assert mixture.mixture.tokens == 100 * 10**9
    assert [phase.schedule for phase in mixture.mixture.phases] == ["step", "linear"]
    assert mixture.sources["modules"].strata.repeats == (1, 2, 3)
    assert len(mixture.stages) > 5
    assert mixture.sources["modules"].keep == {"url": "url", "date": "date"}
    assert mixture.sources["modules"].exclude == ("**/test/**",)
    assert mixture.execution.resources["dedup.exact"].memory == 4 << 30
