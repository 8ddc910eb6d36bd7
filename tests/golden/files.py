"""Golden files: text that a test compares with what stands beside this module.

Set SHARDWRIGHT_GOLDEN=write to write them anew, and read the difference before it is committed.
"""

import os
from difflib import unified_diff
from pathlib import Path

FOLDER = Path(__file__).parent
SHOWN_LINES = 40


def assert_golden(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("SHARDWRIGHT_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    golden = path.read_text(encoding="utf-8")
    if text != golden:
        lines = [
            *unified_diff(golden.splitlines(), text.splitlines(), "golden", "now", n=1, lineterm="")
        ]
        raise AssertionError(
            f"tests/golden/{name} differs; SHARDWRIGHT_GOLDEN=write with this test writes it anew:"
            " read the difference before it is committed\n" + "\n".join(lines[:SHOWN_LINES])
        )
