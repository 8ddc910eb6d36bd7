"""Cluster expressions with all counts of nodes or devices multiplied by one factor."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from shardwright.errors import ClusterError

_COUNT_BEHIND: Final = re.compile(r"([^:]*):\s*([0-9_]{1,24})\s*")
_COUNT_BEFORE: Final = re.compile(r"\s*([0-9_]{1,24})( *[xX*].*)", re.DOTALL)


def multiply_counts(expression: str, *, factor: Fraction) -> str:
    """Expression with each term's count of nodes or devices x `factor`; ClusterError if not whole.

    ``h100-sxm:64@east/2.5usd`` times 1/2 is ``h100-sxm:32@east/2.5usd``.

    Args:
        expression: without scale factors (`split_and_apply_scale_factors_of_cluster_text`).

    Raises:
        ClusterError: a term has no count, or the product is no whole number.
    """
    nodes, comma, links = expression.partition(",")
    terms = [_multiplied(term, factor) for term in nodes.split("+")]
    return "+".join(terms) + comma + links


def _multiplied(term: str, factor: Fraction) -> str:
    """One term of an expression with its count multiplied."""
    end = min((at for at in (term.find("@"), term.find("/")) if at >= 0), default=len(term))
    written, rest = term[:end], term[end:]
    behind, before = _COUNT_BEHIND.fullmatch(written), _COUNT_BEFORE.fullmatch(written)
    if behind is not None:
        return f"{behind[1]}:{_product(behind[2], factor, term)}{rest}"
    if before is not None:
        return f"{_product(before[1], factor, term)}{before[2]}{rest}"
    raise ClusterError(f"{term.strip()[:60]!r} has no count", hint="write NAME:COUNT")


def _product(count: str, factor: Fraction, term: str) -> int:
    """The product of a count and the factor; ClusterError if it is no positive whole number."""
    product = int(count.replace("_", "") or 0) * factor
    if product.denominator != 1 or product < 1:
        raise ClusterError(
            f"{factor} times the count in {term.strip()[:60]!r} is no whole number",
            hint="choose another factor",
        )
    return int(product)
