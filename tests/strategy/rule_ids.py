"""Ids of the rules that a package's source names."""

import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "shardwright"


def rule_ids(folder: str, *layers: str) -> list[str]:
    """Ids such as ``order.rows`` in the files of a folder of the package, of some layers."""
    texts = [path.read_text() for path in (SOURCE / folder).glob("*.py")]
    return sorted(
        {
            rule
            for text in texts
            for rule in re.findall(rf'"((?:{"|".join(layers)})\.[a-z-]+)"', text)
        }
    )


PLAN_LAYERS = (
    "plan",
    "lane",
    "stage",
    "placement",
    "split",
    "core",
    "experts",
    "keep",
    "shards",
    "order",
)
PLAN_RULES = rule_ids("strategy/verify", *PLAN_LAYERS)
"""Of a plan's structure."""
