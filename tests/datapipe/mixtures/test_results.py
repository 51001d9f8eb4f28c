"""Tables of weights and metrics, together or apart; what is wrong with one is named with its line."""

from pathlib import Path

import pytest

from datapipe.errors import UserError
from datapipe.mixtures.results import read_results

WEIGHTS = "run,web,code\na,7,3\nb,50%,1/2\n"


def test_results_are_joined_with_the_weights_beside_them(tmp_path: Path) -> None:
    (tmp_path / "weights.csv").write_text(WEIGHTS)
    (tmp_path / "results.csv").write_text("run,loss,score\nb,2.5,1\na,3,\na,3.5,0\n")

    found = read_results(tmp_path / "results.csv", None, ("code", "web"), ())

    assert (found.names, found.metrics, found.num_open) == (("web", "code"), ("loss", "score"), 1)
    assert found.shares.tolist() == [[0.5, 0.5], [0.7, 0.3]]
    assert found.values.tolist() == [[2.5, 1.0], [3.5, 0.0]]


@pytest.mark.parametrize(("sources", "metrics"), [(("web", "code", "other"), ()), ((), ("loss",))])
def test_weights_may_be_columns_of_the_results(tmp_path: Path, sources: tuple[str, ...], metrics: tuple[str, ...]) -> None:
    (tmp_path / "weights.csv").write_text("run,web,code,loss\na,1,3,2.0\n")

    found = read_results(tmp_path / "weights.csv", None, sources, metrics)

    assert (found.names, found.metrics) == (("web", "code"), ("loss",))
    assert found.shares.tolist() == [[0.25, 0.75]]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("run,loss\nc,1\n", "results.csv:2: no weights of run 'c'."),
        ("run,loss\na,low\n", "results.csv:2: loss: found 'low', expected a finite number"),
        ("run,loss\na,1,2\n", "results.csv:2: found more cells than the 2 columns"),
        ("name,loss\na,1\n", "results.csv: no column 'run'. Found: name, loss"),
        ("run\na\n", "results.csv: found the columns run, expected weights and metrics"),
        ("run,loss\n", "results.csv: found no row"),
    ],
)
def test_wrong_table_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "weights.csv").write_text(WEIGHTS)
    (tmp_path / "results.csv").write_text(text)
    with pytest.raises(UserError) as error:
        read_results(tmp_path / "results.csv", None, (), ())
    assert problem in str(error.value)
