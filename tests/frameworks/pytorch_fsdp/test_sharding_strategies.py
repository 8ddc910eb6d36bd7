"""How launches on FSDP shard, by the names of its strategies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.api.launches.launch_advice import read_request
from shardwright.api.request_to_problem import load_cluster
from shardwright.errors import DataError, StrategyError
from shardwright.frameworks.pytorch_fsdp.sharding_strategies import sharding
from shardwright.frameworks.read_launch import launch_of_files
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.search.search_request import Request

ACCELERATE = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision:"
    " bf16\nper_device_train_batch_size: 1\n"
)
FILES = {
    "accelerate": f"{ACCELERATE}fsdp_config: {{fsdp_sharding_strategy: STRATEGY}}\n",
    "huggingface-trainer": (
        "per_device_train_batch_size: 1\nnum_train_epochs: 1\nbf16: true\nfsdp_config:"
        " {sharding_strategy: STRATEGY}\n"
    ),
}


@pytest.mark.parametrize("framework", FILES)
@pytest.mark.parametrize(
    ("strategy", "node", "words"),
    [
        ("HYBRID_SHARD", 8, (3, 8)),
        ("4", 4, (3, 4)),
        ("HYBRID_SHARD_ZERO2", 4, (2, 4)),
        ("HYBRID_SHARD", 32, (3, 0)),
        ("FULL_SHARD", 8, (3, 0)),
        ("SHARD_GRAD_OP", 8, (2, 0)),
    ],
)
def test_a_hybrid_strategy_shards_within_a_node(
    framework: str, strategy: str, node: int, words: tuple[int, int]
) -> None:
    files = [("a.yaml", FILES[framework].replace("STRATEGY", strategy))]
    found = launch_of_files(
        files, model=load_model("llama-3.1-8b"), devices=32, node_devices=node, framework=framework
    )
    assert (found.grid.zero, found.grid.shard) == words
    assert any("of a node" in note for note in found.notes) == bool(words[1])


SIZES = {
    "accelerate": (
        f"{ACCELERATE}fsdp_config: {{fsdp_version: 2}}\nparallelism_config:"
        " {parallelism_config_dp_shard_size: SHARDS}\n"
    ),
    "axolotl": (
        "base_model: a/b\nsequence_len: 2048\nmicro_batch_size: 1\nbf16: true\nfsdp_version: 2\n"
        "fsdp_config: {reshard_after_forward: true}\ndp_shard_size: SHARDS\n"
    ),
}


@pytest.mark.parametrize("framework", SIZES)
@pytest.mark.parametrize("shards", [4, 8, 16])
def test_a_launch_for_another_number_of_devices_is_told(framework: str, shards: int) -> None:
    files = [("a.yaml", SIZES[framework].replace("SHARDS", str(shards)))]
    found = launch_of_files(files, model=load_model("llama-3.1-8b"), devices=8, framework=framework)
    told = [note for note in found.notes if "room for 8 replicas" in note]
    assert len(told) == (shards != 8)


def test_copies_that_do_not_divide_the_replicas_are_refused() -> None:
    with pytest.raises(StrategyError, match="3 copies"):
        sharding("full_shard", replicas=8, replicate=3, node_devices=8)


def test_nodes_are_those_of_the_cluster(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "a.yaml"
    path.write_text(FILES["accelerate"].replace("STRATEGY", "HYBRID_SHARD"))
    request = Request(
        model="llama-3.1-8b", cluster="a100-sxm-40gb:64", seq_len=2048, global_batch=64
    )
    for text, shard in (("h100-sxm:16", 8), ("gb200:16", 4)):
        cluster = load_cluster(text)
        launch, _ = read_request([str(path)], request, cluster=cluster)
        assert launch.grid.shard == cluster.node.num_devices == shard


@given(
    nodes=st.integers(1, 9),
    node=st.integers(1, 9),
    replicate=st.integers(1, 4),
    strategy=st.sampled_from(["full_shard", "4", "5", "2"]),
)
def test_groups_divide_the_replicas(nodes: int, node: int, replicate: int, strategy: str) -> None:
    replicas = nodes * node * replicate
    found = sharding(strategy, replicas=replicas, replicate=replicate, node_devices=node)
    assert found.zero == (
        0 if replicas == 1 else {"full_shard": 3, "4": 3, "5": 2, "2": 2}[strategy]
    )
    assert replicas % (found.shard or replicas) == 0
    if replicate > 1:
        assert found.shard == nodes * node


def test_what_is_no_strategy_is_refused() -> None:
    with pytest.raises(DataError, match="quarter_shard"):
        sharding("quarter_shard", replicas=8, replicate=1, node_devices=8)
    with pytest.raises(StrategyError, match="do not divide"):
        sharding("hybrid_shard", replicas=12, replicate=1, node_devices=8)
