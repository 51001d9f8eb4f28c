"""The numbers of reports that are joined, whatever sources, steps and languages are called."""

from __future__ import annotations

import pytest

from datapipe.report.joined import joined

_ENTRY = {"sampled": 0.5, "threshold": 3.0, "peak_bytes": 7}


@pytest.mark.parametrize("name", ["threshold", "sampled", "peak_bytes", "languages", "borderline"])
def test_names_of_sources_and_steps_are_no_keys_of_records(name: str) -> None:
    both = joined({name: {"rows": 1, **_ENTRY}}, {name: {"rows": 2, "sampled": 0.25, "threshold": 4.0, "peak_bytes": 5}}, 1)
    assert both == {name: {"rows": 3, "sampled": 0.25, "threshold": 3.0, "peak_bytes": 7}}
    assert joined({name: 1}, {name: 2}) == {name: 3}
    languages = joined({name: {"languages": {name: 1}}}, {name: {"languages": {name: 2}}}, 1)
    assert languages == {name: {"languages": {name: 3}}}
