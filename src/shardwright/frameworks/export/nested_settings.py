"""Settings in sections: what targets read as JSON or YAML, with a setting of a section below it by
a dotted name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from shardwright.frameworks.export.option_flags import flag_pairs
from shardwright.frameworks.settings.setting_table import Pair

Settings = dict[str, Any]


def nested(settings: Iterable[Pair]) -> Settings:
    """Sections of settings: ``("a.b", 1)`` is ``b`` of section ``a``. Of one that stands twice, the
    last.
    """
    found: Settings = {}
    for name, value in settings:
        *sections, last = name.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return found


def settings_of(flag: str) -> tuple[Pair, ...]:
    """The settings in a flag such as ``a.b: true, c: cpu``, each name with its value."""
    return tuple((name, yaml.safe_load(value)) for name, value in flag_pairs(flag))
