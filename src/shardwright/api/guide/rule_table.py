"""The rules of the training guide, in the order in which people ask."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.guide_rule import GuideRule
from shardwright.api.guide.rules import (
    data_parallelism_first,
    does_it_fit,
    starting_point_by_size,
    technique_by_device_count,
)

RULES: Final[tuple[GuideRule, ...]] = (
    does_it_fit.RULE,
    data_parallelism_first.RULE,
    starting_point_by_size.RULE,
    technique_by_device_count.RULE,
)
"""A rule is one module of `api.guide.rules`; its line here adds it to the guide."""
