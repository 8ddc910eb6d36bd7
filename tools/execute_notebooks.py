"""Execute the notebooks of docs/notebooks, and write them with their outputs.

    python tools/execute_notebooks.py

It needs the extra `notebooks`. Files depend on nothing but their cells: times, versions and random
identifiers are left out, and a card's text form too. `tests/docs/test_notebooks.py` runs the cells
without Jupyter and compares.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
SECONDS = 300
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(notebook: Any) -> Any:
    """The notebook with outputs, run in an empty folder."""
    from nbclient import NotebookClient

    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
        )
        return client.execute()


def cleaned(notebook: Any) -> dict[str, Any]:
    """The notebook as it is stored."""
    cells = []
    for number, cell in enumerate(notebook["cells"]):
        kept = {
            "cell_type": cell["cell_type"],
            "id": f"cell-{number}",
            "metadata": {},
            "source": cell["source"],
        }
        if cell["cell_type"] == "code":
            kept["execution_count"] = cell["execution_count"]
            kept["outputs"] = _merged_streams([_cleaned_output(one) for one in cell["outputs"]])
        cells.append(kept)
    return {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def _cleaned_output(output: Any) -> dict[str, Any]:
    """An output without metadata; a card without its text form, which is long."""
    kept = dict(output)
    if "metadata" in kept:
        kept["metadata"] = {}
    if "text/html" in kept.get("data", {}):
        kept["data"] = {"text/html": kept["data"]["text/html"]}
    return kept


def _merged_streams(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outputs with neighbouring streams as one: a kernel sends a stream in parts."""
    merged: list[dict[str, Any]] = []
    for output in outputs:
        last = merged[-1] if merged else {}
        if output["output_type"] == "stream" and last.get("name") == output["name"]:
            last["text"] += output["text"]
        else:
            merged.append(output)
    return merged


def text_of(notebook: dict[str, Any]) -> str:
    """Text of a stored notebook."""
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Execute and write all notebooks."""
    import nbformat

    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        path.write_text(text_of(cleaned(executed(notebook))), encoding="utf-8")


if __name__ == "__main__":
    main()
