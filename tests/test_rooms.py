"""The moves of decision 27 (tools/rooms.py); removed with them."""

from __future__ import annotations

import pytest

from tools import rooms

TABLE = {
    "shardwright.cost.tiles": "shardwright.cost.kernels.tile_quantization",
    "shardwright.cost.bounds": "shardwright.cost.bounds.closed_form_bounds",
    "shardwright.launch_files.launch": "shardwright.launch_files.launch.launch",
}


@pytest.fixture(scope="module")
def names() -> rooms.Names:
    return rooms.Names(TABLE)


@pytest.mark.parametrize(
    ("text", "then"),
    [
        (
            "from shardwright.cost.tiles import waves\n",
            "from shardwright.cost.kernels.tile_quantization import waves\n",
        ),
        (
            "from shardwright.cost import tiles\n",
            "from shardwright.cost.kernels import tile_quantization as tiles\n",
        ),
        (
            "from shardwright.cost import tiles as t, parts\n",
            (
                "from shardwright.cost.kernels import tile_quantization as t\nfrom shardwright.cost"
                " import parts\n"
            ),
        ),
        (
            "from shardwright.launch_files import launch\n",
            "from shardwright.launch_files.launch import launch\n",
        ),
        (
            "from .tiles import waves\n",
            "from shardwright.cost.kernels.tile_quantization import waves\n",
        ),
        ("import shardwright.cost.bounds\n", "import shardwright.cost.bounds.closed_form_bounds\n"),
        (
            "def f():\n    from shardwright.cost import tiles  # why\n",
            (
                "def f():\n    from shardwright.cost.kernels import tile_quantization as tiles  #"
                " why\n"
            ),
        ),
        (
            "x = 'shardwright.cost.bounds:_bound_all'\n",
            "x = 'shardwright.cost.bounds.closed_form_bounds:_bound_all'\n",
        ),
        (
            "from shardwright.cost.tiles_of import other\n",
            "from shardwright.cost.tiles_of import other\n",
        ),
    ],
)
def test_code(names: rooms.Names, text: str, then: str) -> None:
    assert names.in_code(text, "shardwright.cost.compute", is_package=False) == then


@pytest.mark.parametrize(
    ("text", "then"),
    [
        (
            "`shardwright.cost.tiles.waves` and `cost/tiles.py`",
            (
                "`shardwright.cost.kernels.tile_quantization.waves` and"
                " `cost/kernels/tile_quantization.py`"
            ),
        ),
        (
            "[here](../src/shardwright/cost/tiles.py)",
            "[here](../src/shardwright/cost/kernels/tile_quantization.py)",
        ),
        ("other/cost/tiles.py and cost/tiles.pyc", "other/cost/tiles.py and cost/tiles.pyc"),
    ],
)
def test_texts(names: rooms.Names, text: str, then: str) -> None:
    assert names.in_text(text) == then


def test_a_page_names_modules_without_their_ending(names: rooms.Names) -> None:
    text = "`cost/tiles` and (cost/bounds), not other/cost/tiles or cost/tiles.md."
    assert (
        names.in_page(text)
        == "`cost/kernels/tile_quantization` and (cost/bounds/closed_form_bounds), not"
        " other/cost/tiles or cost/tiles.md."
    )


def test_signatures_keep_their_order() -> None:
    text = (rooms.SOURCE / "kernel_signatures.json").read_text(encoding="utf-8")
    assert rooms._sorted_entries(text) == text
    assert (
        rooms._sorted_entries('{\n "b": [\n  1\n ],\n "a": [\n  2\n ]\n}\n')
        == '{\n "a": [\n  2\n ],\n "b": [\n  1\n ]\n}\n'
    )


def test_circles_are_found() -> None:
    assert rooms.circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    edges = {"p.a.x": {"p.b.y"}, "p.b.z": {"p.a.w"}}
    assert set(rooms.sibling_edges(edges)["p"]) == {("a", "b"), ("b", "a")}


@pytest.mark.proof
def test_the_table_makes_no_circle() -> None:
    assert [line for line in rooms.check(rooms.read_table()) if not line.startswith("note")] == []
