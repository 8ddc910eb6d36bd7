"""Questions with parts that are wrong, large, of another type, missing or paths."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.web.running_server import SMALL

BODIES: dict[str, dict[str, Any]] = {
    "plan": {
        "request": {**SMALL, "pins": {"tp": ["8"]}, "excludes": {"zero": ["3"]}},
        "files": {},
    },
    "simulate": {"request": SMALL, "strategy": "tp2 dp4 mbs1 zero1"},
    "compare": {
        "request": SMALL,
        "strategies": ["tp2 dp4 mbs1 zero1", "tp8"],
        "clusters": ["a100-sxm-80gb:8"],
        "tokens": 1e12,
        "prices": {"h100-sxm": 2.5},
    },
    "guide": {"request": SMALL, "serving": True, "answer_tokens": 128},
    "advise": {"request": SMALL, "launch": {"train.sh": "torchrun pretrain_gpt.py --bf16"}},
    "report": {"plan": '{"schema": "shardwright.plan", "version": 3}', "tokens": 1e12},
    "explain": {"plan": '{"schema": "shardwright.plan"}'},
    "why": {"plan": "{}", "strategy": "zero3"},
    "cluster": {"text": "nodes: [{accelerator: h100-sxm, count: 2}]", "nodes": 1},
}
"""A body of each verb that has its form."""
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 10**30, 1.5, -0.0, 1e300, "", "/etc/passwd", "../../x.yaml",
    "a.json", "\x00", "\ud800", "😀" * 40, "x" * 5000, [], {}, [[]], {"": {}}, "nan", "tp=8",
    "%s%n", "$(id)", "h100-sxm:1000000000", "{", "plan x", "a\nb", "file:///etc/passwd",
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all parts of a JSON value."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(one for key, part in inner for one in places(part, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The JSON value with another part at a path."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], new)
    return copy


def fuzzed_question(random: Random) -> tuple[str, bytes]:
    """A verb and a body, most of them wrong."""
    verb = random.choice(list(BODIES))
    body: Any = BODIES[verb]
    for _ in range(random.choice((1, 1, 2, 4))):
        path = random.choice(places(body))
        new = random.choice(ODD)
        kind = random.randrange(4)
        body = changed(body, path, {**new, "": new} if isinstance(new, dict) and kind else new)
        if kind == 3 and isinstance(body, dict) and body:
            body = {name: part for name, part in body.items() if name != random.choice([*body])}
    text = json.dumps(body).encode()
    if random.random() < 0.2:
        place, length = random.randrange(len(text) + 1), random.randrange(4)
        text = text[:place] + random.randbytes(length) + text[place + random.randrange(4) :]
    if random.random() < 0.02:
        text = b"[" * random.randrange(1, 200_000)
    return verb, text
