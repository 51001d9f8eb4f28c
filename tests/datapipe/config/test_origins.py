from datapipe.config.origins import Origins
from datapipe.config.yaml import parse_yaml

TEXT = "name: x\npack:\n  method: concat\nstages:\n  - a.b\n  - c.d: {e: 1}\n"


def origins() -> Origins:
    return Origins.of(parse_yaml(TEXT, "m.yaml"), "m.yaml")


def test_where_names_file_line_and_path():
    assert origins().where(("pack", "method")) == "m.yaml:3: pack.method"
    assert origins().where(("stages", 1)) == "m.yaml:6: stages[1]"


def test_where_of_a_default_names_the_nearest_written_key():
    assert origins().where(("pack", "sequence_length")) == "m.yaml:2: pack.sequence_length"
    assert origins().where(("shards", "format")) == "m.yaml: shards.format"
    assert origins().where(()) == "m.yaml"


def test_replaced_values_come_from_the_option():
    changed = origins().replaced(("stages",), ["x.y", {"z.w": {"k": 1}}], "--set")
    assert changed.where(("stages", 1, "z.w", "k")) == "--set: stages[1].z.w.k"
    assert changed.where(("stages", 1, "c.d", "e")) == "--set: stages[1].c.d.e"
    assert changed.where(("name",)) == "m.yaml:1: name"
