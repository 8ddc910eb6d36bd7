"""Condition of rules of the guide that apply to every request, for training and for serving."""

from __future__ import annotations


def applies_to_every_request(_facts: object) -> bool:
    """True: the rule applies to every request."""
    return True
