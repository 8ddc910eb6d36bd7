"""Any two files together are a cluster or one line, also where one of them was changed."""

from __future__ import annotations

from random import Random

import pytest

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.cluster_from_inventories import cluster_from_inventories
from shardwright.hardware.inventories.detect_format_and_read_inventory import read_inventory
from shardwright.hardware.inventories.merge_inventories import more_precise_fact
from shardwright.hardware.inventories.node_facts import DeviceLinks, FactKind, FoundFact
from shardwright.units import GIB
from tests.fuzz.mutate import mutated
from tests.hardware.inventory_files import SAMPLES
from tests.tiers import in_both, many, random_of

GIVEN = (
    {},
    {"": "h100-sxm"},
    {"": "gb200", "a100": "a100-pcie-80gb"},
    {"": "aws-p5.48xlarge", "h100": "l40s"},
)


def outcome(random: Random) -> str:
    """What two files, one of them changed, come to."""
    texts = [mutated(SAMPLES, random), random.choice(SAMPLES)]
    random.shuffle(texts)
    try:
        files = [read_inventory(text, name=f"f{number}") for number, text in enumerate(texts)]
        return cluster_from_inventories(
            files, given=random.choice(GIVEN), count=random.choice((0, 0, 2, 10**9))
        ).cluster.described()
    except ClusterError as error:
        return f"error: {error.message}"


@in_both
def test_two_files_are_a_cluster_or_one_line() -> None:
    random = random_of("inventories")
    found = [outcome(random) for _ in range(many(150, 5000))]
    refused = sum(one.startswith("error: ") for one in found)
    assert 0 < refused < len(found)


def fact(what: FactKind, value: object) -> FoundFact:
    return FoundFact(what, value, str(value))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "one", "other", "kept"),
    [
        (FactKind.DEVICES, 8, 8, 8),
        (FactKind.DEVICES, 8, 4, None),
        (FactKind.PRODUCT, "h100", "NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        (FactKind.PRODUCT, "h100", "a100", None),
        (FactKind.PRODUCT, "shiny", "a100", "a100"),
        (FactKind.LINKS, DeviceLinks(4, 12), DeviceLinks(12, 12), DeviceLinks(12, 12)),
        (FactKind.LINKS, DeviceLinks(4, 12), DeviceLinks(4, 4), DeviceLinks(4, 4)),
        (FactKind.LINKS, DeviceLinks(0, 12), DeviceLinks(18, 18), None),
        (FactKind.HOST_MEMORY, 2015 * GIB, 1999 * GIB, 1999 * GIB),
        (FactKind.HOST_MEMORY, 2015 * GIB, 1024 * GIB, None),
        (FactKind.NEAR, "mlx5_0 GPU0", "mlx5_1 GPU0", "mlx5_0 GPU0"),
    ],
)
def test_two_facts_are_one_or_a_contradiction(
    what: FactKind, one: object, other: object, kept: object
) -> None:
    pairs = [(fact(what, one), fact(what, other)), (fact(what, other), fact(what, one))]
    for here, there in pairs if what is not FactKind.NEAR else pairs[:1]:
        if kept is None:
            with pytest.raises(ClusterError, match=r"^[^(]* is .* \(.*\), and .* \(.*\)$"):
                more_precise_fact(here, there)
        else:
            assert more_precise_fact(here, there).value == kept
