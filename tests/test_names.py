"""A word means one thing in a layer, and the glossary points at files that exist."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import shardwright
from tests.sources import trees

SOURCE = Path(shardwright.__file__).parent
GLOSSARY = (Path(__file__).parents[1] / "docs" / "glossary.md").read_text()


def twice_in_a_layer() -> set[tuple[str, str]]:
    places: dict[tuple[str, str], int] = defaultdict(int)
    for module, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[module.split(".")[1], node.name] += 1
    return {name for name, count in places.items() if count > 1}


def test_no_class_name_is_defined_twice_in_a_layer() -> None:
    assert twice_in_a_layer() == set()


def test_the_glossary_is_sorted_and_its_files_exist() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", GLOSSARY, flags=re.MULTILINE)[1:]
    words = [word.lower() for word, _ in rows]
    assert words == sorted(words)
    assert len(words) > 30
    missing = {
        file
        for _, where in rows
        for file in re.findall(r"`([^`]+)`", where)
        if not (SOURCE / file).is_file()
    }
    assert missing == set()
