"""The whole way from a file to a Mixture, and every way it can be wrong, each with the exact line a person sees."""

from fractions import Fraction
from pathlib import Path

import pytest

from datapipe.config import StageUse, TokenizerTraining, load_mixture
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
SOURCE_KEYS = (
    "path, prefix, exclude, format, text, id, keep, types, check_fields, lone_surrogates, weight, max_epochs, strata, "
    "license, license_field, homepage, collected, synthetic, cost, stages, fingerprint"
)
TOP_KEYS = (
    "name, seed, output, max_quarantined, max_unreadable_files, validation, sources, licenses, stages, tokenizer, pack, "
    "shards, documents, mixture, takedown, publish, execution"
)


def written(folder: Path, text: str) -> Path:
    path = folder / "mixture.yaml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str, *overrides: str) -> str:
    path = written(folder, text)
    with pytest.raises(UserError) as caught:
        load_mixture(path, overrides)
    return str(caught.value).replace(str(path), "mixture.yaml")


def test_mixture_is_read_as_it_is_written(tmp_path: Path):
    mixture = load_mixture(written(tmp_path, GOOD))
    web, code = mixture.sources["web"], mixture.sources["code"]
    assert (mixture.name, mixture.seed, mixture.output) == ("web-and-code", 17, "runs/web-and-code")
    assert (mixture.max_quarantined, mixture.validation) == (0.001, 0.001)
    assert (web.path, web.keep, web.weight, web.max_epochs) == (
        ("data/web/*.jsonl.zst",),
        {"url": "url", "date": "date"},
        Fraction(7, 10),
        4,
    )
    assert (code.path, code.format.to_data(), code.stages) == (
        ("data/a/*.parquet", "data/b/*.parquet"),
        "parquet",
        (StageUse(name="dedup.exact", alias="dedup.exact"),),
    )
    assert mixture.stages[1] == StageUse(
        name="filter.language", alias="filter.language", options={"keep": ["en"], "min_score": 0.65}
    )
    assert (mixture.shards.target_bytes, mixture.mixture.tokens) == (256 * 1024**2, 10**11)
    assert [phase.until for phase in mixture.mixture.phases] == [Fraction(4, 5), Fraction(1)]


def test_defaults_are_those_of_the_contract(tmp_path: Path):
    mixture = load_mixture(written(tmp_path, "name: a\noutput: b\nsources: {web: {path: c}}\n"))
    assert (mixture.seed, mixture.max_quarantined, mixture.validation, mixture.stages) == (0, 0.001, 0.0, ())
    web = mixture.sources["web"]
    assert (web.format.to_data(), web.text, web.id, web.keep, web.weight, web.max_epochs) == ("auto", "text", "id", {}, 1, None)
    assert (web.license, web.synthetic, web.stages, web.fingerprint) == (None, False, None, "stat")
    assert mixture.tokenizer.train == TokenizerTraining(
        vocab_size=32_000, sample_bytes=256 << 20, pattern="gpt2", eos="<|endoftext|>"
    )
    assert (mixture.pack.sequence_length, mixture.pack.method, mixture.pack.pool_documents) == ((2048,), "best_fit", 10_000)
    assert (mixture.shards.format, mixture.shards.target_bytes) == ("arrow", 256 << 20)
    assert (mixture.mixture.tokens, mixture.mixture.phases) == (None, ())
    assert (mixture.execution.split_bytes, mixture.execution.bucket_bytes) == (32 << 20, 256 << 20)


def test_section_with_everything_commented_out_is_absent(tmp_path: Path):
    empty = "stages:\ntokenizer:\npack:\nshards:\nmixture:\nexecution:\n"
    short = "name: a\noutput: b\nsources: {web: {path: c}}\n"
    assert load_mixture(written(tmp_path, short + empty)) == load_mixture(written(tmp_path, short))


def test_environment_overrides_and_output_come_in_that_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CORPUS", "/corpora")
    path = written(tmp_path, GOOD.replace("path: data/web", "path: ${CORPUS}/web"))
    overrides = ["output=x", "sources.code.path=${CORPUS}/code", "pack.sequence_length=4", "pack.sequence_length=512"]
    mixture = load_mixture(path, overrides, output="s3://bucket/run")
    assert mixture.sources["web"].path == ("/corpora/web/*.jsonl.zst",)
    assert mixture.sources["code"].path == ("/corpora/code",)
    assert (mixture.pack.sequence_length, mixture.output) == ((512,), "s3://bucket/run")


@pytest.mark.parametrize(("spelling", "share"), [("1%", 0.01), ("0.5%", 0.005), ("0.02", 0.02), ("0", 0.0), ("100%", 1.0)])
def test_limit_of_padding_is_a_share_in_any_spelling(tmp_path: Path, spelling: str, share: float):
    path = written(tmp_path, GOOD)
    assert load_mixture(path).pack.max_padding == 0.02
    assert load_mixture(path, [f"pack.max_padding={spelling}"]).pack.max_padding == share


def test_output_option_stands_in_for_a_missing_output(tmp_path: Path):
    path = written(tmp_path, "name: a\nsources: {web: {path: c}}\n")
    assert load_mixture(path, output="runs/a").output == "runs/a"


def test_every_value_knows_where_it_was_written(tmp_path: Path):
    path = written(tmp_path, GOOD)
    mixture = load_mixture(path, ["pack.method=concat"])
    assert mixture.where("sources", "web", "path") == f"{path}:8: sources.web.path"
    assert mixture.where("sources", "web", "fingerprint") == f"{path}:7: sources.web.fingerprint"
    assert mixture.where("pack", "method") == "--set: pack.method"
    assert [use.where for use in mixture.stages[:2]] == [f"{path}:21: stages[0]", f"{path}:22: stages[1]"]
    assert mixture.stages_of("code")[0].where == f"{path}:19: sources.code.stages[0]"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            "weight: 0.7",
            "wieght: 0.7",
            f"mixture.yaml:10: sources.web.wieght: unknown key. Did you mean 'weight'? Expected one of: {SOURCE_KEYS}.",
        ),
        ("seed: 17", "sede: 17", f"mixture.yaml:2: sede: unknown key. Did you mean 'seed'? Expected one of: {TOP_KEYS}."),
        (
            "sequence_length: 2048",
            "length: 2048",
            "mixture.yaml:27: pack.length: unknown key. Did you mean 'sequence_length'? "
            "Expected one of: sequence_length, method, pool_documents, max_padding, min_piece.",
        ),
        ("name: web-and-code", "", "mixture.yaml: name: missing. Expected: name of the snapshot and of the report."),
        (
            "output: runs/web-and-code",
            "",
            "mixture.yaml: output: missing. Expected: folder of the snapshot: a path or URL (s3://…).",
        ),
        ("name: web-and-code", "name: 3", "mixture.yaml:1: name: found 3, expected text: put it in quotes."),
        ("name: web-and-code", "name: ''", "mixture.yaml:1: name: found '', expected text of at least 1 characters."),
        ("seed: 17", "seed: true", "mixture.yaml:2: seed: found true, expected a whole number."),
        ("seed: 17", "seed: '17'", "mixture.yaml:2: seed: found '17', expected a whole number."),
        ("seed: 17", "seed: 1.5", "mixture.yaml:2: seed: found 1.5, expected a whole number."),
        ("seed: 17", "seed: -1", "mixture.yaml:2: seed: found -1, expected at least 0."),
        ("seed: 17", "seed: 17\nseed: 18", "mixture.yaml:3: seed: found twice, first in line 2. Remove one."),
        (
            "max_quarantined: 0.1%",
            "max_quarantined: 200%",
            "mixture.yaml:4: max_quarantined: found '200%', expected a share from 0 to 1 such as 0.001, or "
            "a percentage such as 0.1%.",
        ),
        ("validation: 0.1%", "validation: 1", "mixture.yaml:5: validation: found 1, expected less than 1."),
        (
            "weight: 0.7",
            "weight: abc",
            "mixture.yaml:10: sources.web.weight: found 'abc', expected a number of at least 0 such as 0.7, 70% or 1/3.",
        ),
        (
            "weight: 0.7",
            "weight: true",
            "mixture.yaml:10: sources.web.weight: found true, expected a number of at least 0 such as 0.7, 70% or 1/3.",
        ),
        (
            "weight: 0.7",
            "weight: -0.7",
            "mixture.yaml:10: sources.web.weight: found -0.7, expected a number of at least 0 such as 0.7, 70% or 1/3.",
        ),
        (
            "weight: 0.7",
            "weight: 1.5e300",
            "mixture.yaml:10: sources.web.weight: found 1.5e+300, expected a weight of at most 1e300.",
        ),
        ("max_epochs: 4", "max_epochs: four", "mixture.yaml:11: sources.web.max_epochs: found 'four', expected a number."),
        ("max_epochs: 4", "max_epochs: 0", "mixture.yaml:11: sources.web.max_epochs: found 0, expected more than 0."),
        ("max_epochs: 4", "max_epochs: .inf", "mixture.yaml:11: sources.web.max_epochs: found inf, expected a finite number."),
        ("keep: [url, date]", "keep: url", "mixture.yaml:9: sources.web.keep: found 'url', expected a list."),
        ("keep: [url, date]", "keep:", "mixture.yaml:9: sources.web.keep: found nothing, expected a list."),
        ("keep: [url, date]", "keep: [3]", "mixture.yaml:9: sources.web.keep[0]: found 3, expected text: put it in quotes."),
        (
            "keep: [url, date]",
            "keep: {a: url, b: url}",
            "mixture.yaml:9: sources.web.keep: found a mapping, expected each field once.",
        ),
        ("keep: [url, date]", "keep: [url, url]", "mixture.yaml:9: sources.web.keep: found a list, expected each field once."),
        (
            "keep: [url, date]",
            "keep: [text]",
            "mixture.yaml:9: sources.web.keep: 'text' cannot be kept: every document already has a column of this name. "
            "Leave it out, or keep it under another name: {NAME: text}.",
        ),
        (
            "path: data/web/*.jsonl.zst",
            "path: []",
            "mixture.yaml:8: sources.web.path: found an empty list, expected a path, a glob or a list of them.",
        ),
        (
            "path: data/web/*.jsonl.zst",
            "text: body",
            "mixture.yaml:7: sources.web.path: missing. Expected: glob or list of globs of the input files: "
            "local paths or URLs (s3://…, https://…).",
        ),
        (
            "path: data/web/*.jsonl.zst",
            "path: ${DATAPIPE_NOT_SET}/x",
            "mixture.yaml:8: sources.web.path: the environment variable DATAPIPE_NOT_SET is not set. "
            "Set it, or write $${DATAPIPE_NOT_SET} for the text itself.",
        ),
        (
            "synthetic: false",
            "synthetic: no",
            "mixture.yaml:17: sources.code.synthetic: found 'no', expected true or false or a mapping with keys "
            "of: model, prompt.",
        ),
        (
            "synthetic: false",
            "license: cc-by4.0",
            "mixture.yaml:17: sources.code.license: 'cc-by4.0' is no licence of SPDX. Did you mean 'CC-BY-4.0'? For a licence "
            "that SPDX does not list, write LicenseRef-cc-by4.0.",
        ),
        (
            "synthetic: false",
            "collected: {from: 2024-05, to: 2023-11-30}",
            "mixture.yaml:17: sources.code.collected: found a mapping, expected a range that ends after it begins; it begins "
            "2024-05 and ends 2023-11-30.",
        ),
        (
            "synthetic: false",
            "cost: {usd: 3, usd_per_million_tokens: 1}",
            "mixture.yaml:17: sources.code.cost: expected one of the keys usd and usd_per_million_tokens.",
        ),
        (
            "synthetic: false",
            "license_field: text",
            "mixture.yaml:17: sources.code.license_field: 'text' is a column that every document has. Expected the field with "
            "the license.",
        ),
        (
            "seed: 17",
            "licenses: [cc0-1.0]",
            "mixture.yaml:12: sources.web.license: found 'CC-BY-4.0', and `licenses` allows CC0-1.0 only. Leave the source "
            "out, or add it.",
        ),
        (
            "synthetic: false",
            "fingerprint: contents",
            "mixture.yaml:17: sources.code.fingerprint: found 'contents', expected one of: stat, content. "
            "Did you mean 'content'?",
        ),
        (
            "  web:",
            "  we b:",
            "mixture.yaml:7: sources.we b: found 'we b', expected a name of letters, digits, '_', '.' and '-' "
            "that begins with a letter or digit.",
        ),
        (
            "format: arrow",
            "format: megatron",
            "mixture.yaml:28: shards.format: the loader cannot stream megatron files, because they hold neither rows "
            "nor document keys. Expected one of: arrow, parquet. After the run, `datapipe export OUTPUT --format megatron "
            "--to URL` writes them.",
        ),
        (
            "format: arrow",
            "format: arow",
            "mixture.yaml:28: shards.format: found 'arow', expected one of: arrow, parquet. Did you mean 'arrow'?",
        ),
        (
            "256MiB",
            "256M",
            "mixture.yaml:28: shards.target_bytes: found '256M', expected a size above 0 such as 256MiB, 1GB or 1048576.",
        ),
        ("sequence_length: 2048", "sequence_length: 1", "mixture.yaml:27: pack.sequence_length: found 1, expected at least 2."),
        (
            "sequence_length: 2048",
            "sequence_length: [8, 1]",
            "mixture.yaml:27: pack.sequence_length[1]: found 1, expected at least 2.",
        ),
        (
            "sequence_length: 2048",
            "sequence_length: []",
            "mixture.yaml:27: pack.sequence_length: found an empty list, expected at least one length.",
        ),
        (
            "sequence_length: 2048",
            "sequence_length: [8, 8]",
            "mixture.yaml:27: pack.sequence_length: found a list, expected each length once.",
        ),
        (
            "2048, method: best_fit",
            "3000, method: buckets",
            "mixture.yaml:27: pack.sequence_length: found 3000, expected a power of two for method: buckets.",
        ),
        (
            "2048, method: best_fit",
            "[2048, 64], method: buckets, min_piece: 256",
            "mixture.yaml:27: pack.min_piece: found 256, expected at most the sequence length, 64.",
        ),
        (
            "method: best_fit",
            "method: best_fit, min_piece: 256",
            "mixture.yaml:27: pack.min_piece: needs method: buckets; best_fit drops nothing. Leave it out.",
        ),
        (
            "method: best_fit",
            "method: concat, max_padding: 1%",
            "mixture.yaml:27: pack.max_padding: needs method: best_fit; concat fills its rows anyway. Leave it out.",
        ),
        (
            "method: best_fit",
            "method: best_fit, max_padding: 2",
            "mixture.yaml:27: pack.max_padding: found 2, expected a share from 0 to 1 such as 0.001, or a percentage such "
            "as 0.1%.",
        ),
        (
            "pack: {sequence_length: 2048, method: best_fit}",
            "pack: 2048",
            "mixture.yaml:27: pack: found 2048, expected a mapping with keys of: "
            "sequence_length, method, pool_documents, max_padding, min_piece.",
        ),
        (
            "vocab_size: 32000",
            "vocab_size: 256",
            "mixture.yaml:26: tokenizer.train.vocab_size: found 256, expected at least 257.",
        ),
        (
            "  train: {vocab_size: 32000}",
            "  train: {}\n  path: t.json",
            "mixture.yaml:25: tokenizer: found both, expected exactly one of: train, path.",
        ),
        (
            "  train: {vocab_size: 32000}",
            "  eos: </s>",
            "mixture.yaml:25: tokenizer: found none, expected exactly one of: train, path.",
        ),
        (
            "  train: {vocab_size: 32000}",
            "  train: {}\n  eos: </s>",
            "mixture.yaml:27: tokenizer.eos: needs path. Write the token of a trained tokenizer as train.eos.",
        ),
        (
            "tokens: 100B",
            "tokens: 1.5",
            "mixture.yaml:30: mixture.tokens: found 1.5, expected a whole number above 0 such as 100B, 2.5M or 1e9.",
        ),
        (
            "  tokens: 100B\n",
            "",
            "mixture.yaml:29: mixture.tokens: missing. Expected: the tokens to train on, for phases.",
        ),
        (
            "until: 80%",
            "until: 80",
            "mixture.yaml:32: mixture.phases[0].until: found 80, expected a share from 0 to 1 such as 0.001, "
            "or a percentage such as 0.1%.",
        ),
        ("until: 80%", "until: 100%", "mixture.yaml:33: mixture.phases[1].until: found 100%, expected more than 100%."),
        (
            "until: 100%",
            "until: 90.5%",
            "mixture.yaml:33: mixture.phases[1].until: found 90.5%, expected 100% for the last phase.",
        ),
        (
            "{web: 0.8, code: 0.2}",
            "{wbe: 0.8, code: 0.2}",
            "mixture.yaml:32: mixture.phases[0].weights.wbe: unknown source. Did you mean 'web'? Expected one of: web, code.",
        ),
        (
            "{web: 0.8, code: 0.2}",
            "{web: 0}",
            "mixture.yaml:32: mixture.phases[0].weights: every weight is 0. Expected at least one above 0.",
        ),
        (
            "code: 0.2}}",
            "code: 0.2}, stairs: 8}",
            "mixture.yaml:32: mixture.phases[0].stairs: needs schedule: linear. Leave it out for schedule: step.",
        ),
        (
            "tokens: 100B",
            "weighting: unimax",
            "mixture.yaml:29: mixture.tokens: missing. Expected: the tokens to train on, for phases; "
            "missing. Expected: the tokens to train on, for weighting: unimax.",
        ),
        (
            "tokens: 100B",
            "tokens: 100B\n  weighting: unimax",
            "mixture.yaml:32: mixture.phases: cannot be combined with weighting: unimax, which sets the weights of the "
            "whole run. Leave one out.",
        ),
        (
            "max_epochs: 4",
            "strata: {by: score, bounds: [10, 2], repeat: [1, 2]}",
            "mixture.yaml:11: sources.web.strata.bounds: found [10.0, 2.0], expected numbers in ascending order.",
        ),
        (
            "max_epochs: 4",
            "strata: {by: score, bounds: [2, 10], repeat: [1, 2]}",
            "mixture.yaml:11: sources.web.strata.repeat: found 2 numbers, expected 3: one for each stratum of 2 bounds.",
        ),
        (
            "max_epochs: 4",
            "strata: {by: score, bounds: [1], repeat: [1, 0]}",
            "mixture.yaml:11: sources.web.strata.repeat[1]: found 0, expected at least 1.",
        ),
        (
            "max_epochs: 4",
            "strata: {by: text, bounds: []}",
            "mixture.yaml:11: sources.web.strata.bounds: found an empty list, expected a length of at least 1.",
        ),
        (
            "- dedup.minhash",
            "- filter.language",
            "mixture.yaml:23: stages[2]: 'filter.language' is also the name of item 1 of this list. "
            "Give one of them another name with `as: NAME`.",
        ),
        (
            "- dedup.minhash",
            "- filter.length:\n    min_words: 3",
            "mixture.yaml:23: stages[2]: found a mapping of 2 keys (filter.length, min_words), expected the name of a stage, "
            "or one name with its options indented below it, one step further in.",
        ),
        (
            "- dedup.minhash",
            "- 3",
            "mixture.yaml:23: stages[2]: found 3, expected the name of a stage, or one name with its "
            "options indented below it.",
        ),
        (
            "- dedup.minhash",
            "- {}",
            "mixture.yaml:23: stages[2]: found an empty mapping, expected the name of a stage, "
            "or one name with its options indented below it.",
        ),
        (
            "- dedup.minhash",
            "- dedup minhash",
            "mixture.yaml:23: stages[2]: found 'dedup minhash', expected a stage such as filter.length or package.module:NAME.",
        ),
        (
            "- dedup.minhash",
            "- filter.length: 3",
            "mixture.yaml:23: stages[2].filter.length: found 3, expected a mapping of the stage's options.",
        ),
        (
            "- dedup.minhash",
            "- filter.length: {as: 'a b'}",
            "mixture.yaml:23: stages[2].filter.length.as: found 'a b', expected a name of letters, digits, '_', '.' and '-' "
            "that begins with a letter or digit.",
        ),
        (
            GOOD[GOOD.index("stages:\n  - n") :],
            "stages: dedup.exact\n",
            "mixture.yaml:20: stages: found 'dedup.exact', expected a list.",
        ),
        (
            GOOD[GOOD.index("sources") :],
            "sources: {}\n",
            "mixture.yaml:6: sources: found an empty mapping, expected a length of at least 1.",
        ),
        (GOOD[GOOD.index("sources") :], "sources: [a]\n", "mixture.yaml:6: sources: found a list, expected a mapping."),
        (
            GOOD[GOOD.index("sources") :],
            "sources: {a: {path: b, weight: 0}}\n",
            "mixture.yaml:6: sources: every weight is 0. Expected at least one source with a weight above 0.",
        ),
    ],
)
def test_wrong_value_is_refused_in_one_line(tmp_path: Path, before: str, after: str, expected: str):
    assert before in GOOD
    assert refusal(tmp_path, GOOD.replace(before, after, 1)).splitlines()[0] == expected


def test_all_problems_are_listed(tmp_path: Path):
    text = GOOD.replace("weight: 0.7", "wieght: 0.7").replace("seed: 17", "seed: x").replace("2048", "one")
    assert [line.split(": ")[1] for line in refusal(tmp_path, text).splitlines()] == [
        "sources.web.wieght",
        "seed",
        "pack.sequence_length",
    ]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "pack.sequence_lenght=3",
            "--set: pack.sequence_lenght: unknown key. Did you mean 'sequence_length'? "
            "Expected one of: sequence_length, method, pool_documents, max_padding, min_piece.",
        ),
        ("pakc.sequence_length=3", f"--set: pakc: unknown key. Did you mean 'pack'? Expected one of: {TOP_KEYS}."),
        ("pack.sequence_length=x", "--set: pack.sequence_length: found 'x', expected a whole number."),
        ("sources.wbe.weight=1", "--set: sources.wbe: unknown source. Did you mean 'web'? Expected one of: web, code."),
        ("name=2024", "--set: name: found 2024, expected text: put it in quotes."),
        ("output=", "--set: output: found nothing, expected text."),
        (
            "stages.1=3",
            "--set: stages[1]: found 3, expected the name of a stage, or one name with its options indented below it.",
        ),
    ],
)
def test_wrong_override_is_refused_in_one_line(tmp_path: Path, override: str, expected: str):
    assert refusal(tmp_path, GOOD, override) == expected


def test_wrong_output_option_is_refused_in_one_line(tmp_path: Path):
    with pytest.raises(UserError) as caught:
        load_mixture(written(tmp_path, GOOD), output="")
    assert str(caught.value) == "--output: output: found '', expected text of at least 1 characters."


SCHEDULE = GOOD.partition("  phases:")[0].replace("license: cc-by-4.0", "strata: {by: score, bounds: [1]}")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "tokens: 100B",
            "exhausted: refuse",
            "mixture.yaml:29: mixture.tokens: missing. Expected: the tokens to train on, for exhausted: refuse.",
        ),
        (
            "tokens: 100B",
            "weighting: temperature",
            "mixture.yaml:29: mixture.temperature: missing. Expected: a number of at least 1, such as 2.0, "
            "for weighting: temperature.",
        ),
        (
            "tokens: 100B",
            "tokens: 100B\n  weighting: unimax",
            "mixture.yaml:10: sources.web.weight: needs weighting: given; unimax computes the weights. "
            "Leave it out, or write 0 to draw nothing.\n"
            "mixture.yaml:16: sources.code.weight: needs weighting: given; unimax computes the weights. "
            "Leave it out, or write 0 to draw nothing.\n"
            "mixture.yaml:13: sources.code.max_epochs: missing, as is mixture.max_epochs. "
            "Expected: the largest number of repetitions, for weighting: unimax.",
        ),
        (
            "tokens: 100B",
            "temperature: 0.5",
            "mixture.yaml:30: mixture.temperature: found 0.5, expected a number of at least 1: 1 draws in proportion to the "
            "tokens, a higher one more evenly.",
        ),
        (
            "tokens: 100B",
            "temperature: 2",
            "mixture.yaml:30: mixture.temperature: needs weighting: temperature, found given. Leave it out.",
        ),
        (
            "tokens: 100B",
            "exhausted: no",
            "mixture.yaml:30: mixture.exhausted: found 'no', expected one of: stop, refuse, redistribute.",
        ),
        ("tokens: 100B", "window: -1", "mixture.yaml:30: mixture.window: found -1, expected at least 0."),
        (
            "method: best_fit}",
            "method: buckets}",
            "mixture.yaml:12: sources.web.strata: cannot be combined with pack.method: buckets, which divides the source by "
            "length. Leave one out.",
        ),
    ],
)
def test_wrong_schedule_is_refused_with_its_line(tmp_path: Path, old: str, new: str, expected: str):
    assert refusal(tmp_path, SCHEDULE.replace(old, new)) == expected
