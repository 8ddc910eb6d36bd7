"""Conversion of dotted setting names to nested sections for JSON or YAML."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from shardwright.frameworks.export.plan_runtime_options_as_flags import flag_pairs
from shardwright.frameworks.settings.setting_table import Pair

Settings = dict[str, Any]


def nested_sections(settings: Iterable[Pair]) -> Settings:
    """Nest settings in sections: ``("a.b", 1)`` becomes ``b`` of section ``a``.

    The last of several values of a name wins.
    """
    sections_by_name: Settings = {}
    for name, value in settings:
        *sections, last = name.split(".")
        place = sections_by_name
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return sections_by_name


def settings_of_flag(flag: str) -> tuple[Pair, ...]:
    """Parse a runtime option's flag, ``a.b: true, c: cpu``, to (name, YAML value) pairs."""
    return tuple((name, yaml.safe_load(value)) for name, value in flag_pairs(flag))
