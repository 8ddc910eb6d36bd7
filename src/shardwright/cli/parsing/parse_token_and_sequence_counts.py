"""Parse counts of tokens and sequences: ``8k``, ``4M tokens``.

k, M and G are 1024, 1024^2 and 1024^3: an 8k context has 8,192 tokens.

A batch of 4M tokens is 512 sequences of an 8k context.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from shardwright.errors import UsageError

MULTIPLIERS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_COUNT: Final = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([kmg]?)\s*(tok|tokens?)?")
MAX_LETTERS: Final = 40
AUTO: Final = "auto"
"""Text at the start of a ``--global-batch`` that `plan` chooses."""
IN_TOKENS: Final = ("--seq-len", "--critical-batch")


def read_count(text: str, *, flag: str) -> int:
    """Read a flag's count from 1 on: ``8,192`` and ``8k`` are 8192; UsageError for other text.

    Raises:
        UsageError: the text is not a whole number from 1 on.
    """
    count, in_tokens = _parse_count(text, flag=flag)
    if in_tokens and flag not in IN_TOKENS:
        raise UsageError(
            f"{flag} {text[:MAX_LETTERS]!r} counts tokens", hint="give a number of sequences"
        )
    return count


def read_batch(text: str, tokens: str, *, seq_len: int) -> int:
    """Parse the one batch flag given, to sequences a step; UsageError unless a whole number.

    Args:
        text: ``--global-batch``: sequences, or tokens with a unit (``"4M tokens"``).
        tokens: ``--global-batch-tokens``; exactly one of `text` and `tokens` is empty.

    Raises:
        UsageError: neither, or both; no whole number; or tokens that are no whole number of
        sequences.
    """
    if bool(text) == bool(tokens):
        problem = "give the same value twice" if text else "are both missing"
        raise UsageError(
            f"--global-batch and --global-batch-tokens {problem}",
            hint="give one of them: --global-batch 512, or --global-batch-tokens 4M",
        )
    if text.strip().startswith(AUTO):
        raise UsageError(
            f"--global-batch {text[:MAX_LETTERS]}: only `plan` chooses a batch",
            hint="give a number of sequences, or plan first",
        )
    flag = "--global-batch" if text else "--global-batch-tokens"
    count, in_tokens = _parse_count(text or tokens, flag=flag)
    if text and not in_tokens:
        return count
    if count % seq_len:
        below = count // seq_len
        suggestions = [
            f"{n:,} sequences are {n * seq_len:,} tokens" for n in (below, below + 1) if n
        ]
        raise UsageError(
            f"{flag}: {count:,} tokens are no whole number of sequences of {seq_len:,}",
            hint="; ".join(suggestions),
        )
    return count // seq_len


def _parse_count(text: str, *, flag: str) -> tuple[int, bool]:
    """Parse a count: (number, k = 1024; True if the text ends in ``tok`` or ``tokens``)."""
    match = _COUNT.fullmatch(text.strip().lower()) if len(text) <= MAX_LETTERS else None
    number = (
        Fraction(match[1].replace(",", "").replace("_", "")) * MULTIPLIERS[match[2]]
        if match
        else Fraction(0)
    )
    if match is None or number < 1 or number.denominator != 1:
        raise UsageError(
            f"{flag} {text[:MAX_LETTERS]!r} is not a whole number from 1 on",
            hint="such as 4096, 8k (8,192) or 4M (4,194,304)",
        )
    return int(number), bool(match[3])
