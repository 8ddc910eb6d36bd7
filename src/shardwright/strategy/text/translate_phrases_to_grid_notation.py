"""Everyday phrases for strategies, translated to grid notation: ``fsdp``, ``more tp``.

Others are ``zero-3``, ``no recompute`` and ``tensor parallel 4``.

A phrase is one to five words, hyphens and underscores read as spaces. Words of the notation itself
stay unchanged, and win where a phrase sets the same axis: ``fsdp tp4`` is ``tp4 cp1 pp1 zero3``.
Sources of the phrases: FSDP is full sharding over all devices (Zhao et al. 2023, arXiv 2304.11277,
section 3.2: FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD); DDP holds all states on every device (Li et
al. 2020, arXiv 2006.15704); ZeRO's stages are those of Rajbhandari et al. 2020 (arXiv 1910.02054,
section 3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from shardwright.errors import StrategyError, nearest
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.strategy.grid.chunk_placement_by_schedule import GRID_SCHEDULES
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.text.grid_notation import is_word, name_and_value, word_hint

MAX_TEXT: Final = 1000
MAX_PHRASE_WORDS: Final = 5
"""Words of the longest phrase."""
DEGREES: Final[Mapping[str, str]] = {
    "tp": "tp",
    "tensor": "tp",
    "tensor parallel": "tp",
    "tensor model parallel": "tp",
    "pp": "pp",
    "pipeline": "pp",
    "pipeline parallel": "pp",
    "pipeline stages": "pp",
    "dp": "dp",
    "data parallel": "dp",
    "cp": "cp",
    "context parallel": "cp",
    "ep": "ep",
    "expert parallel": "ep",
    "vpp": "vpp",
    "virtual stages": "vpp",
    "virtual pipeline": "vpp",
    "mbs": "mbs",
    "microbatch": "mbs",
    "micro batch": "mbs",
    "microbatch size": "mbs",
    "micro batch size": "mbs",
}
"""Names of the degrees -> the notation's."""
DATA_PARALLEL_ONLY: Final = "tp1 cp1 pp1"
"""No parallelism but data parallelism."""
PHRASES: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("fsdp", "fsdp2", "full shard", "fully sharded", "fully sharded data parallel"),
        f"{DATA_PARALLEL_ONLY} zero3",
    ),
    **dict.fromkeys(
        (
            "ddp",
            "distributed data parallel",
            "plain data parallel",
            "pure data parallel",
            "pure dp",
        ),
        f"{DATA_PARALLEL_ONLY} zero0",
    ),
    **dict.fromkeys(
        ("only dp", "dp only", "only data parallel", "data parallel only"), DATA_PARALLEL_ONLY
    ),
    "shard grad op": f"{DATA_PARALLEL_ONLY} zero2",
    "zero": "zero1",
    **dict.fromkeys(("distributed optimizer", "zero optimizer"), "zero1"),
    **dict.fromkeys(
        ("no zero", "without zero", "no sharding", "without sharding", "no fsdp"), "zero0"
    ),
    **dict.fromkeys(("sequence parallel", "with sp"), "sp"),
    **dict.fromkeys(("no sp", "without sp", "no sequence parallel"), "sp=0"),
    **dict.fromkeys(("no experts parallel", "no ep", "without ep"), "ep1"),
    **dict.fromkeys(
        ("recompute", "full recompute", "full activation recompute", "activation recompute"),
        "recompute=full",
    ),
    **dict.fromkeys(
        ("activation checkpointing", "gradient checkpointing", "checkpointing"), "recompute=full"
    ),
    **dict.fromkeys(
        ("selective", "selective recompute", "selective checkpointing"), "recompute=selective"
    ),
    **dict.fromkeys(
        ("no recompute", "without recompute", "no checkpointing", "without checkpointing"),
        "recompute=none",
    ),
    **dict.fromkeys(("no activation checkpointing", "no gradient checkpointing"), "recompute=none"),
    **dict.fromkeys(
        ("offload", "cpu offload", "optimizer offload", "offload optimizer"), "offload=100"
    ),
    **dict.fromkeys(("no offload", "without offload"), "offload=0"),
    **dict.fromkeys(("no interleaving", "without interleaving"), "schedule=1f1b"),
    **dict.fromkeys(("zero bubble", "zb"), "schedule=zb-h1"),
    "zbv": "schedule=zb-v",
    **{
        name.replace("-", " "): f"schedule={name}"
        for name in GRID_SCHEDULES
        if name != "interleaved-1f1b"
    },
}
"""Phrases that mean the same for every plan -> the notation."""
_UP: Final = ("more", "larger", "bigger", "higher")
_DOWN: Final = ("less", "fewer", "smaller", "lower")
_NONE: Final = ("no", "without")
_LADDER: Final = tuple(Recompute)
_FILLERS: Final = frozenset(("with", "and", "plus", "use", "using", "+"))


@dataclass(frozen=True, slots=True)
class TranslatedStrategy:
    """A strategy in grid notation, and an account of the phrases that were translated.

    The account is empty where the text was in the notation already.
    """

    text: str
    read_as: str = ""


def translate_phrases(text: str, *, of: Grid | None) -> TranslatedStrategy:
    """Translate phrases such as ``fsdp`` or ``more tp`` to grid words; ``more``: than in grid `of`.

    Args:
        of: the grid that ``more tp`` changes; None = there is none.

    Raises:
        StrategyError: a word is neither of the notation nor part of a phrase, or asks for a change
            where there is no grid to change.
    """
    if len(text) > MAX_TEXT or not text.strip() or all(is_word(word) for word in text.split()):
        return TranslatedStrategy(text)
    words = [word for word in re.split(r"[\s,;]+", text.lower()) if word and word not in _FILLERS]
    notation_words: list[str] = []
    translated: list[str] = []
    accounts: list[str] = []
    while words:
        count, meaning = _longest_phrase(words, of)
        if count:
            translated += meaning.split()
            accounts.append(f'"{" ".join(words[:count])}" as {meaning}')
        elif is_word(words[0]):
            notation_words.append(words[0])
        else:
            raise StrategyError(
                f"unknown word {words[0][:40]!r} in a strategy", hint=_phrase_hint(words[0])
            )
        words = words[max(count, 1) :]
    axes_named = {name_and_value(word)[0] for word in notation_words}
    by_name = {
        name: word for word in translated if (name := name_and_value(word)[0]) not in axes_named
    }
    return TranslatedStrategy(" ".join([*by_name.values(), *notation_words]), "; ".join(accounts))


def _longest_phrase(words: list[str], of: Grid | None) -> tuple[int, str]:
    """(number of words, notation) of the longest known phrase at the start of `words`, or (0, "").

    A word of the notation is never the whole of a phrase.
    """
    for count in range(min(MAX_PHRASE_WORDS, len(words)), 0, -1):
        if count == 1 and is_word(words[0]):
            break
        plain = " ".join(" ".join(words[:count]).replace("-", " ").replace("_", " ").split())
        meaning = _notation_of_phrase(
            plain.replace("parallelism", "parallel").replace("recomputation", "recompute"), of
        )
        if meaning:
            return count, meaning
    return 0, ""


def _notation_of_phrase(phrase: str, of: Grid | None) -> str:
    """Grid notation of a whole phrase, steps being relative to grid `of`; empty if unknown."""
    if phrase in PHRASES:
        return PHRASES[phrase]
    first_word, _, later_words = phrase.partition(" ")
    if first_word in _NONE and DEGREES.get(later_words, "dp") not in ("dp", "mbs"):
        return f"{DEGREES[later_words]}1"
    match = re.fullmatch(r"(.*?)(?: degree| stage| size| of)? ?=? ?([0-9]{1,9})", phrase)
    if match and (match[1] in DEGREES or match[1] == "zero"):
        return f"{DEGREES.get(match[1], 'zero')}{match[2]}"
    if first_word in (*_UP, *_DOWN):
        return _one_step(later_words, first_word in _UP, of)
    if phrase in DEGREES:
        return _one_step(phrase, True, of)
    return (
        _one_step("vpp", True, of)
        if phrase in ("interleaved", "interleaving", "interleaved 1f1b", "virtual")
        else ""
    )


def _one_step(name: str, up: bool, of: Grid | None) -> str:
    """Notation (`tp8`) of one step up or down from `of`; empty if `name` is no degree."""
    degree = DEGREES.get(name, name)
    if degree not in _STEPS and degree not in DEGREES.values():
        return ""
    if of is None:
        raise StrategyError(
            f"{'more' if up else 'less'} {name[:40]}: than what?",
            hint="a strategy of its own says a number: tp4",
        )
    if degree in _STEPS:
        return _STEPS[degree](of, up)
    degree_now = {"mbs": of.microbatch}.get(degree) or getattr(of, degree)
    if not up and degree_now == 1:
        raise StrategyError(
            f"less {name[:40]}: the plan has {degree}1", hint="nothing is less than 1"
        )
    return f"{degree}{degree_now * 2 if up else degree_now // 2}"


def _zero_step(of: Grid, up: bool) -> str:
    """Notation for the ZeRO stage above (`up`) or below that of grid `of`, within 0 to 3."""
    return f"zero{min(of.zero + 1, 3) if up else max(of.zero - 1, 0)}"


def _recompute_step(of: Grid, up: bool) -> str:
    """Notation for the next recompute level, more (`up`) or less, than grid `of`'s; clamped."""
    level = _LADDER.index(of.recompute) + (1 if up else -1)
    return f"recompute={_LADDER[min(max(level, 0), len(_LADDER) - 1)]}"


_STEPS: Final[Mapping[str, Callable[[Grid, bool], str]]] = {
    **dict.fromkeys(("zero", "sharding"), _zero_step),
    **dict.fromkeys(("recompute", "checkpointing", "activation checkpointing"), _recompute_step),
}
"""Axes other than degrees that have a next higher and a next lower step."""


def _phrase_hint(word: str) -> str:
    """Hint with the phrases most like an unknown word."""
    hint = nearest(word, (*PHRASES, *DEGREES))
    return (
        hint
        if hint.startswith("did you mean")
        else f"{word_hint(word)}; or such as fsdp, no recompute, more tp"
    )
