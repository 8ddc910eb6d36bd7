"""What launch scripts of published runs set, as the rows of one configuration have it from the
facts."""

import pytest

from shardwright.validation.serving.measured_deployment import ServingRun
from tests.validation.serving_tables import published_cases


def options_of(row: str) -> dict[str, str]:
    """Those of the engine in InferenceX's row."""
    (found,) = (
        c
        for c in published_cases()
        if c.measurement.source_id == "silicon" and c.measurement.table_or_row == row
    )
    assert isinstance(found, ServingRun), found
    return dict(found.engine.options)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        # fp8, tp 8, three guesses: 4 and 32 in flight at 1k and 1k.
        ("2739", {"experts": "trtllm", "sequences": "4", "graph_max": "4"}),
        (
            "2747",
            {
                "experts": "trtllm",
                "graph_max": "32",
                "piecewise": "on",
                "piece_sizes": "1,2,4,8,16,32,64,128,256,512,768,1024,1216",
            },
        ),
        # The same on ranks with attention of their own: an eighth of 256 on each, one guess.
        (
            "2746",
            {
                "experts": "deepgemm",
                "sequences": "32",
                "graph_max": "32",
                "memory": "0.7",
                "token_budget": "1152",
            },
        ),
        # fp4: a quarter of those in flight on each of eight ranks.
        ("2705", {"experts": "cutlass", "sequences": "32", "graph_max": "32"}),
        # SGLang 0.5.9 lets in all of 512.
        ("1993", {"sequences": "512", "graph_max": "512", "token_budget": "16384"}),
    ],
)
def test_runs_that_guess_have_the_launch_script_of_their_version(
    row: str, expected: dict[str, str]
) -> None:
    options = options_of(row)
    assert {name: options.get(name) for name in expected} == expected


def test_narrow_runs_capture_no_pieces_and_an_older_version_has_the_older_script() -> None:
    assert "piecewise" not in options_of("2739")
    assert "piecewise" not in options_of("2736")
    assert options_of("4600")["graph_max"] == "512"
