"""Reader of scenario files: conditions of a cluster, with their weights.

::

    scenarios:
      - {name: as it is, weight: 0.8}
      - {name: shared network, weight: 0.15, network: 0.5}
      - {name: a throttled node, weight: 0.05, nodes: [{node: 3, devices: 0.7}]}

In a cluster with zones a scenario may have slower links, too: ``links: [{between: [east, west],
bandwidth: 0.2, later_ms: 30}]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from shardwright.errors import ClusterError
from shardwright.hardware.files.bounded_yaml import read_text_file, read_yaml
from shardwright.hardware.files.cluster_schema import (
    Fraction,
    NotNegative,
    Positive,
    Word,
    YamlRecord,
)
from shardwright.hardware.files.schema_errors import Place, first_schema_error
from shardwright.hardware.slowdown_scenarios import MOST_STATES, LinkState, NodeState, State
from shardwright.units import scale_decimal

WHAT: Final = "scenario file"
_FORM: Final = (
    "scenarios: [{name: usual, weight: 0.9}, {name: busy network, weight: 0.1, network: 0.5}]"
)


class NodeStateRecord(YamlRecord):
    """A slower node: its number, from 0, and shares of its devices' speed and cards' bandwidth."""

    node: Annotated[int, Field(ge=0, lt=4_194_304)]
    devices: Fraction = 1.0
    cards: Fraction = 1.0


class LinkStateRecord(YamlRecord):
    """A slower link between zones: share of its bandwidth, and milliseconds of added latency.

    The link is in both directions (`between`), or in one (`source`, `target`).
    """

    between: Annotated[list[Word], Field(min_length=2, max_length=2)] | None = None
    source: Word | None = None
    target: Word | None = None
    bandwidth: Fraction = 1.0
    later_ms: NotNegative = 0.0


class StateRecord(YamlRecord):
    """A cluster condition: its weight, and its slower devices, network, nodes and links."""

    name: Word
    weight: Positive = 1.0
    devices: Fraction = 1.0
    network: Fraction = 1.0
    nodes: tuple[NodeStateRecord, ...] = Field(default=(), max_length=1024, strict=False)
    links: tuple[LinkStateRecord, ...] = Field(default=(), max_length=4096, strict=False)


class StatesRecord(YamlRecord):
    """A whole scenario file."""

    scenarios: Annotated[list[StateRecord], Field(min_length=1, max_length=MOST_STATES)]


def load_states(path: Path) -> tuple[State, ...]:
    """Read the cluster states of a scenario file; ClusterError where it is wrong or unreadable."""
    return states_from_yaml(read_text_file(path, what=WHAT))


def states_from_yaml(text: str) -> tuple[State, ...]:
    """Parse the cluster states that YAML text describes.

    Raises:
        ClusterError: it is not YAML, or not of this form; two states have one name.
    """
    value = read_yaml(text, what=WHAT)
    if not isinstance(value, Mapping):
        raise ClusterError(f"a {WHAT} is a mapping with the key 'scenarios'", hint=_FORM)
    try:
        record = StatesRecord.model_validate(dict(value))
    except ValidationError as error:
        raise first_schema_error(
            error, what=WHAT, form=_FORM, keys_at=_legal_keys, hint_of=_value_hint
        ) from None
    states = tuple(_state_of_record(one, place=place) for place, one in enumerate(record.scenarios))
    names = [one.name for one in states]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ClusterError(
            f"two scenarios are called {twice[0][:40]!r}",
            hint="answers name them: give each a name of its own",
        )
    return states


def _state_of_record(record: StateRecord, *, place: int) -> State:
    """Convert a scenario's record to a `State`; `place` is its index, used in messages."""
    return State(
        name=record.name,
        weight=record.weight,
        devices=record.devices,
        network=record.network,
        nodes=tuple(
            NodeState(node=one.node, devices=one.devices, cards=one.cards) for one in record.nodes
        ),
        links=tuple(
            link
            for number, one in enumerate(record.links)
            for link in _link_states(one, where=f"scenarios.{place}.links.{number}")
        ),
    )


def _link_states(record: LinkStateRecord, *, where: str) -> Iterator[LinkState]:
    """Slower links of a record, one for each direction; ClusterError without two zones."""
    one_way = record.source is not None and record.target is not None
    if one_way == (record.between is not None) or (record.source is None) != (
        record.target is None
    ):
        raise ClusterError(
            f"{where}: a link is between two zones, or from a source to a target",
            hint="between: [east, west]",
        )
    ends = (
        [(record.source, record.target)]
        if record.between is None
        else [tuple(record.between), tuple(record.between[::-1])]
    )
    for source, target in ends:
        yield LinkState(
            source=str(source),
            target=str(target),
            bandwidth=record.bandwidth,
            later_s=scale_decimal(record.later_ms, -3),
        )


def _legal_keys(place: Place) -> list[str]:
    """Legal keys of the object that holds the unknown key at path `place`."""
    inner = next(
        (_PARTS[part] for part in reversed(place[:-1]) if isinstance(part, str) and part in _PARTS),
        StatesRecord,
    )
    return list(inner.model_fields)


def _value_hint(kind: str, key: str) -> str:
    """Hint for a wrong value: the form of a share, or an example of a scenario file."""
    del kind
    return "a share of the usual: more than 0, at most 1" if key in _SHARES else _FORM


_SHARES: Final = ("devices", "network", "cards", "bandwidth")
_PARTS: Final[Mapping[str, type[YamlRecord]]] = {
    "scenarios": StateRecord,
    "nodes": NodeStateRecord,
    "links": LinkStateRecord,
}
