import glob
import re
from pathlib import Path

from datapipe.config import Mixture, load_mixture, starter_mixture


def test_starter_is_a_mixture_over_files_that_are_there(tmp_path: Path):
    path = tmp_path / "mixture.yaml"
    path.write_text(starter_mixture())
    mixture = load_mixture(path)
    assert all(glob.glob(pattern) for source in mixture.sources.values() for pattern in source.path)


def test_starter_shows_every_option_with_a_comment():
    within = "until weights schedule stairs temperature by bounds repeat order num_cpus num_gpus memory model prompt usd "
    within += "usd_per_million_tokens snapshot version from share"
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
    assert mixture.mixture.tokens == 100 * 10**9
    assert [phase.schedule for phase in mixture.mixture.phases] == ["step", "linear"]
    assert mixture.sources["modules"].strata.repeats == (1, 2, 3)
    assert len(mixture.stages) > 5
    assert mixture.sources["modules"].keep == {"url": "url", "date": "date"}
    assert mixture.sources["modules"].exclude == ("**/test/**",)
    assert mixture.execution.resources["dedup.exact"].memory == 4 << 30
