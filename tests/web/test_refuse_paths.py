"""No text of a request is read as a path, whatever field it is in."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import ShardwrightError
from shardwright.model.catalog.load_model_by_name import ENTRIES
from shardwright.search.search_request import Request
from shardwright.web.refuse_paths import FILE_NAMES, require_no_path, require_no_strategy_file
from tests.tiers import examples

REQUEST = {
    "model": "llama-3.1-8b",
    "cluster": "h100-sxm:8",
    "seq_len": 8192,
    "global_batch": 64,
}
PATHS = ("/etc/passwd", "../secret.yaml", "here.yaml", "~/config.json", "a\nb", "c:\\x.yml", ".")
FILES_OF_CLUSTERS = (
    *PATHS[1:-1],
    " x.YAML ",
    "x.yaml,network=2x",
    "/x.json, price=2x",
    "{nodes: []}",
)
"""Texts of which a cluster would be read from a file, or which are one."""


@pytest.mark.parametrize("field", FILE_NAMES)
@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_refused_in_every_field_that_may_be_one(field: str, path: str) -> None:
    if field == "cluster" and path not in FILES_OF_CLUSTERS:
        pytest.skip("an expression, which no file is opened for")
    with pytest.raises(ShardwrightError, match="no request names a file") as refused:
        require_no_path(Request(**{**REQUEST, field: path}))
    assert f"files.{field}" in refused.value.hint


@pytest.mark.parametrize("text", FILES_OF_CLUSTERS)
def test_whatever_the_planner_reads_as_a_cluster_file_is_refused(text: str) -> None:
    with pytest.raises(ShardwrightError, match="no request names a file"):
        require_no_path(Request(**{**REQUEST, "cluster": text}))


def test_a_given_cluster_file_may_have_scale_factors() -> None:
    scaled = Request(**{**REQUEST, "cluster": f"{FILE_NAMES['cluster']},network=2x"})
    require_no_path(scaled, given={"cluster"})


def test_every_field_that_a_plan_file_resolves_is_checked() -> None:
    """Whatever field of a request relative paths are resolved for is in the table."""
    from shardwright.files import rewrite_request_paths_relative_to_folder as paths_of_request

    assert set(paths_of_request._PATHS) == set(FILE_NAMES)
    assert set(FILE_NAMES) <= {field.name for field in fields(Request)}


def test_names_of_the_catalog_and_given_files_pass() -> None:
    for entry in ENTRIES[:5]:
        require_no_path(Request(**{**REQUEST, "model": entry.names[0]}))
    given_fields = Request(**{**REQUEST, **FILE_NAMES})
    require_no_path(given_fields, given=FILE_NAMES)
    with pytest.raises(ShardwrightError):
        require_no_path(given_fields, given=set(FILE_NAMES) - {"profile"})


@examples(100)
@given(text=st.text(alphabet="tp248 dp/=.plan\\jso{}\n", max_size=20))
def test_a_strategy_that_passes_is_read_without_a_file(text: str) -> None:
    """What passes has no separator of paths and no ending of a file, unless it is notation."""
    try:
        require_no_strategy_file(text)
    except ShardwrightError:
        return
    notation = "\n" in text.strip() or text.lstrip().startswith(("plan ", "{"))
    assert notation or ("/" not in text and not text.endswith((".plan", ".json", ".txt")))


def test_a_file_of_this_folder_is_no_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    require_no_strategy_file("tp8")
    (tmp_path / "tp8").write_text("dp8")
    with pytest.raises(ShardwrightError, match="no request names a file"):
        require_no_strategy_file("tp8")
