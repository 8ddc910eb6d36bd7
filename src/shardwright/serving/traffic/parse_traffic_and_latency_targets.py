"""Parse the notation of traffic, latency targets and number formats on the command line."""

from __future__ import annotations

import re
from dataclasses import replace
from math import isfinite
from typing import Final

from shardwright.errors import UsageError, nearest
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    ClosedLoop,
    Diurnal,
    NumberFormat,
    OperatorPrecision,
    Poisson,
    Precision,
    Promise,
    SharedPrefix,
    Speculation,
    TokenRange,
)

_MAX_TEXT: Final = 300
MAX_TOKENS: Final = 10**7
MAX_REQUESTS: Final = 10**7
_SECONDS: Final = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_CLASSES: Final = ("attention", "output", "mlp", "experts", "head", "kv")


def _require_short(text: str, flag: str) -> None:
    """Raise UsageError for an empty text, or one longer than `_MAX_TEXT` characters."""
    if not text.strip() or len(text) > _MAX_TEXT:
        raise UsageError(
            f"{flag} is 1 to {_MAX_TEXT} characters, not {len(text)}",
            hint="see `shardwright serve-simulate --help`",
        )


def read_tokens(text: str, *, flag: str) -> TokenRange:
    """Read a range of token counts: ``1024``, ``1k`` (1,024), or ``819-1024`` (uniform).

    Raises:
        UsageError: the text has another form.
    """
    _require_short(text, flag)
    bounds = [_token_count(part, flag=flag) for part in text.split("-", 1)]
    if bounds[0] > bounds[-1]:
        raise UsageError(
            f"{flag} {text[:40]}: the range ends before it begins",
            hint="write the smaller number first, as 819-1024",
        )
    return TokenRange(low=bounds[0], high=bounds[-1])


def _token_count(text: str, *, flag: str) -> int:
    """Read a number of tokens such as ``1024`` or ``8k`` (8,192); UsageError for other text."""
    word = text.strip().lower().replace(",", "").replace("_", "")
    scale = 1024 if word.endswith("k") else 1
    digits = word.removesuffix("k")
    if (
        not digits.isascii()
        or not digits.isdigit()
        or len(digits) > 8
        or not 1 <= int(digits) * scale <= MAX_TOKENS
    ):
        raise UsageError(
            f"{flag}: {text[:40]!r} is not a number of tokens", hint="such as 1024, 8k or 819-1024"
        )
    return int(digits) * scale


def read_seconds(text: str, *, flag: str) -> float:
    """Read a time above 0 with a unit (``500ms``, ``2s``, ``24h``) as seconds; else UsageError.

    Raises:
        UsageError: no number with a unit, or not above 0.
    """
    match = re.fullmatch(r"([0-9.eE+-]+)\s*(us|ms|s|min|m|h|d)", text.strip())
    try:
        seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    except ValueError:
        seconds = 0.0
    if not (isfinite(seconds) and seconds > 0):
        raise UsageError(
            f"{flag}: {text[:40]!r} is no time above 0 with a unit", hint="such as 500ms, 2s or 24h"
        )
    return seconds


def read_arrivals(text: str, *, requests: int) -> Poisson | Diurnal:
    """Read an arrival process: ``poisson:12/s``, or ``diurnal:12/s,0.5,24h`` (rate, swing, period).

    A diurnal process has a mean rate, a swing as a share of the rate, and a period.

    Raises:
        UsageError: another form, or a number out of its range.
    """
    _require_short(text, "--arrivals")
    kind, _, parameters = text.partition(":")
    parts = [part.strip() for part in parameters.split(",")]
    if kind == "poisson" and len(parts) == 1:
        return Poisson(per_second=_rate(parts[0]), requests=requests)
    if kind == "diurnal" and len(parts) == 3:
        swing = _fraction(parts[1], flag="--arrivals diurnal", largest=1.0)
        return Diurnal(
            per_second=_rate(parts[0]),
            swing=swing,
            period_s=read_seconds(parts[2], flag="--arrivals diurnal"),
            requests=requests,
        )
    forms = ("poisson:12/s", "diurnal:12/s,0.5,24h")
    raise UsageError(
        f"--arrivals {text[:40]!r} is not known",
        hint=f"{' or '.join(forms)}; a log of requests is --trace FILE",
    )


def _rate(text: str) -> float:
    """Read a request rate such as ``12/s`` or ``600/min`` as requests a second; else UsageError."""
    match = re.fullmatch(r"([0-9.eE+-]+)\s*/\s*(s|min|m|h|d)", text)
    try:
        per_second = float(match[1]) / _SECONDS[match[2]] if match else 0.0
    except ValueError:
        per_second = 0.0
    if not (isfinite(per_second) and 0 < per_second <= 1e7):
        raise UsageError(
            f"{text[:40]!r} is no rate of requests", hint="such as 12/s, 0.5/s or 600/min"
        )
    return per_second


def _fraction(text: str, *, flag: str, largest: float) -> float:
    """Read a fraction such as ``0.5`` or ``50%``; UsageError unless from 0 to `largest`."""
    try:
        fraction = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= largest:
        raise UsageError(
            f"{flag}: {text[:40]!r} is not between 0 and {largest:g}", hint="such as 0.5 or 50%"
        )
    return fraction


def read_promise(text: str) -> Promise:
    """Read latency targets written as ``ttft=500ms,tpot=30ms,e2e=10s,share=0.99``.

    Each word at most once; the share of requests is 0.99 by default.

    Raises:
        UsageError: an unknown word, a word given twice, or a time or share out of its range.
    """
    _require_short(text, "--slo")
    names = {"ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_s"}
    fields: dict[str, float] = {}
    for word in text.split(","):
        name, _, value_text = word.strip().partition("=")
        field = names.get(name, name)
        if field in fields or (name not in names and name != "share"):
            hint = "keep one of them" if field in fields else nearest(name[:20], (*names, "share"))
            raise UsageError(
                f"--slo: {name[:20]!r} is {'said twice' if field in fields else 'not known'}",
                hint=hint,
            )
        fields[field] = (
            _fraction(value_text, flag="--slo share", largest=1.0)
            if name == "share"
            else read_seconds(value_text, flag=f"--slo {name}")
        )
    if not fields.keys() - {"share"}:
        raise UsageError("--slo promises no time", hint="such as ttft=500ms,tpot=30ms")
    if fields.get("share", 1.0) <= 0:
        raise UsageError("--slo: a share of 0 promises nothing", hint="such as share=0.99")
    return Promise(**fields)


def read_prefix(text: str) -> SharedPrefix:
    """Read shared prefixes, ``2000x4``: prompts begin with one of 4 texts of 2,000 tokens.

    Raises:
        UsageError: the text has another form.
    """
    tokens, cross, groups = text.strip().partition("x")
    if (
        not cross
        or not groups.isascii()
        or not groups.isdigit()
        or not 1 <= int(groups[:9]) <= MAX_REQUESTS
    ):
        raise UsageError(
            f"--prefix {text[:40]!r} is not TOKENSxTEXTS",
            hint="such as 2000x4: one of 4 texts of 2,000 tokens",
        )
    return SharedPrefix(tokens=_token_count(tokens, flag="--prefix"), groups=int(groups[:9]))


def read_speculation(draft_tokens: int, acceptance: str) -> Speculation | None:
    """Create the speculative decoding settings for `draft_tokens`; None without draft tokens.

    Raises:
        UsageError: one of the two without the other, or an acceptance that is no share.
    """
    if not draft_tokens:
        if acceptance:
            raise UsageError(
                "--acceptance is for draft tokens, and the deployment has none",
                hint="add mtp1 to the deployment",
            )
        return None
    if not acceptance:
        raise UsageError(
            f"the deployment has {draft_tokens} draft tokens, and no acceptance is given",
            hint=(
                "--acceptance 0.8: the probability that a draft token is accepted, given that those"
                " before it were; it depends on model and text"
            ),
        )
    return Speculation(
        tokens=draft_tokens, acceptance=_fraction(acceptance, flag="--acceptance", largest=1.0)
    )


def read_precision(text: str) -> Precision:
    """Read formats: one (``fp8``) for attention, MLP and experts, or one for each class named.

    By class: ``attention=bf16 experts=nvfp4 kv=fp8 mlp=int4/bf16``. After a slash is the format
    that tokens are cast to; without a slash it is the format of the weights, but 16 bits for int4
    and mxfp4, which engines unpack before they multiply. Logits and classes not named are in bf16;
    so are keys and values.

    Raises:
        UsageError: an unknown class or format.
    """
    _require_short(text, "--precision")
    precision = Precision()
    for word in text.replace(",", " ").split():
        name, equals, format_text = word.partition("=")
        if not equals:
            format = _format(name)
            precision = replace(precision, attention=format, mlp=format, experts=format)
        elif name == "kv":
            precision = replace(precision, kv=_format(format_text).weights)
        elif name in _CLASSES:
            precision = replace(precision, **{name: _format(format_text)})  # type: ignore[arg-type]
        else:
            raise UsageError(
                f"--precision: {name[:20]!r} is no class of products",
                hint=nearest(name[:20], _CLASSES),
            )
    return precision


UNPACKED: Final = (NumberFormat.INT4, NumberFormat.INT4_GROUP_32, NumberFormat.MXFP4)


def _format(text: str) -> OperatorPrecision:
    """Read ``weights/activations`` formats; one word is both, but bf16 activations if unpacked."""
    weights, slash, activations = text.lower().partition("/")
    names = [number_format.value for number_format in NumberFormat]
    for name in (weights, activations) if slash else (weights,):
        if name not in names:
            raise UsageError(
                f"--precision: {name[:20]!r} is no number format", hint=nearest(name[:20], names)
            )
    stored = NumberFormat(weights)
    cast = (
        NumberFormat(activations)
        if slash
        else (NumberFormat.BF16 if stored in UNPACKED else stored)
    )
    return OperatorPrecision(weights=stored, activations=cast)


def closed_loop(concurrency: int, *, requests: int) -> ClosedLoop:
    """Create a closed loop of `concurrency` requests in flight; 0 requests = 10 x `concurrency`.

    Raises:
        UsageError: out of range.
    """
    if not 1 <= concurrency <= 10**6 or not 0 <= requests <= MAX_REQUESTS:
        raise UsageError(
            f"{concurrency} requests in flight of {requests} is out of range",
            hint=f"1 to 1,000,000, of {MAX_REQUESTS:,} at most",
        )
    return ClosedLoop(
        concurrency=concurrency, requests=max(requests or 10 * concurrency, concurrency)
    )
