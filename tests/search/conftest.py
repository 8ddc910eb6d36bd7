"""Ray where it is installed, and what stands in for it everywhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from shardwright.search.parallel import engine_by_name
from tests.search.engine.stand_in_ray import StandIn

INSTALLED = find_spec("ray") is not None


@pytest.fixture(params=["stand-in", *(["installed"] if INSTALLED else [])])
def ray(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandIn | None]:
    """The module that stands in, None for Ray itself; no workers are left."""
    if request.param == "installed":
        yield None
        return
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    monkeypatch.setattr(
        engine_by_name, "find_spec", lambda name: object() if name == "ray" else find_spec(name)
    )
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield stand_in
    assert not stand_in.is_initialized()
