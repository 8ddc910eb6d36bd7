"""Golden files: text that a test compares with what stands beside this module.

Set SHARDWRIGHT_GOLDEN=write to write them anew, and read the difference before it is committed.
"""

import os
from pathlib import Path

FOLDER = Path(__file__).parent


def assert_golden(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("SHARDWRIGHT_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), (
        f"{name} differs; SHARDWRIGHT_GOLDEN=write writes it anew"
    )
