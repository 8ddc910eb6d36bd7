"""What Megatron's arguments say of a plan are fields of Megatron-Bridge's configuration, and its
function sets them on a recipe's."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest

from shardwright.api.exports.export_plan import export_plan, write_export
from shardwright.errors import StrategyError
from shardwright.frameworks.megatron_bridge.write import FUNCTION, MODULE
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.layers_per_chunk import chunk_layers
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import num_layers
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from tests.frameworks.megatron.test_write import MODELS, drawn
from tests.frameworks.plans import BATCH, LENGTH, facts_of, legal, stored
from tests.tiers import in_both, numbers

FIELDS = {
    "checkpoint": "ckpt_format",
    "comm_overlap": (
        "delay_wgrad_compute overlap_grad_reduce overlap_moe_expert_parallel_comm "
        "overlap_p2p_comm overlap_param_gather tp_comm_overlap"
    ),
    "dataset": "seq_length",
    "ddp": (
        "average_in_collective check_for_nan_in_grad data_parallel_sharding_strategy"
        " num_distributed_optimizer_instances use_distributed_optimizer use_megatron_fsdp"
    ),
    "dist": "use_megatron_fsdp use_tp_pp_dp_mapping",
    "mixed_precision": "fp8_dot_product_attention fp8_param_gather grad_reduce_in_fp32",
    "model": (
        "activation_func activation_func_fp8_input_store add_bias_linear add_qkv_bias"
        " attention_dropout context_parallel_size cp_comm_type cross_entropy_fusion_impl"
        " cross_entropy_loss_fusion cuda_graph_impl cuda_graph_scope expert_model_parallel_size"
        " expert_tensor_parallel_size ffn_hidden_size gated_linear_unit"
        " gradient_accumulation_fusion hidden_dropout hidden_size"
        " hierarchical_context_parallel_sizes kv_channels kv_lora_rank layernorm_epsilon"
        " moe_expert_capacity_factor moe_ffn_hidden_size moe_flex_dispatcher_backend"
        " moe_grouped_gemm moe_layer_freq moe_permute_fusion moe_router_enable_expert_bias"
        " moe_router_fusion moe_router_group_topk moe_router_num_groups moe_router_pre_softmax"
        " moe_router_score_function moe_router_topk moe_router_topk_scaling_factor"
        " moe_shared_expert_intermediate_size moe_token_dispatcher_type multi_latent_attention"
        " normalization num_attention_heads num_layers num_moe_experts num_query_groups"
        " pipeline_model_parallel_layout pipeline_model_parallel_size position_embedding_type"
        " q_lora_rank qk_head_dim qk_layernorm qk_pos_emb_head_dim recompute_granularity"
        " recompute_method recompute_modules recompute_num_layers rope_scaling rope_scaling_factor"
        " rotary_base rotary_percent seq_length sequence_parallel"
        " share_embeddings_and_output_weights tensor_model_parallel_size"
        " use_transformer_engine_op_fuser v_head_dim virtual_pipeline_model_parallel_size"
        " vocab_size window_size moe_shared_expert_gate"
    ),
    "optimizer": (
        "exp_avg_dtype exp_avg_sq_dtype optimizer_cpu_offload optimizer_offload_fraction"
        " use_distributed_optimizer use_precision_aware_optimizer"
    ),
    "rerun_state_machine": "check_for_nan_in_loss",
    "train": "global_batch_size micro_batch_size",
}
"""Fields of Megatron-Bridge 0.6.2 and Megatron-Core 0.19.2, of those that any export or option
sets: their sources have each of them."""


def section(name: str, **content: Any) -> SimpleNamespace:
    """A section of a recipe that says nothing yet."""
    return SimpleNamespace(**(dict.fromkeys(FIELDS[name].split()) | content))


def stood_in() -> Any:
    """Modules that an export imports, where they are not installed."""
    found = {}
    for name in (
        "torch",
        "torch.nn",
        "torch.nn.functional",
        "megatron",
        "megatron.core",
        "megatron.core.activations",
        "megatron.bridge",
    ):
        found[name] = MagicMock()
    for name, content in (
        ("comm_overlap", {"CommOverlapConfig": partial(section, "comm_overlap")}),
        ("config", {"ConfigContainer": object}),
        (
            "mixed_precision",
            {"get_mixed_precision_config": lambda name: section("mixed_precision", recipe=name)},
        ),
    ):
        module = ModuleType(f"megatron.bridge.training.{name}")
        vars(module).update(content)
        found[module.__name__] = module
    found["megatron.bridge.training"] = MagicMock()
    return patch.dict(sys.modules, found)


def configured(
    grid: Grid,
    model: str,
    folder: Path,
    *,
    runtime: str = "megatron-bridge",
    allow_lossy: bool = True,
) -> Any:
    """What the exported function makes of a recipe that says nothing."""
    one = stored(grid, model=model, runtime=runtime)
    path, *_ = write_export(
        export_plan(one, target="megatron-bridge", allow_lossy=allow_lossy), folder
    )
    assert path.name == f"{MODULE}.py"
    with stood_in():
        return runpy.run_path(str(path))[FUNCTION](
            SimpleNamespace(env_vars={}, **{name: section(name) for name in FIELDS})
        )


def read_back(cfg: Any, model: str) -> Grid:
    """The grid that a configuration is, by what Megatron-Core does with it; replicas are what
    devices are left."""
    own, pp = cfg.model, cfg.model.pipeline_model_parallel_size
    vpp = own.virtual_pipeline_model_parallel_size or 1
    layers: tuple[int, ...] = ()
    if own.pipeline_model_parallel_layout:
        layers = tuple(stage.count("t") for stage in own.pipeline_model_parallel_layout.split("|"))
        assert len(layers) == pp * vpp
    kind, cp = own.cp_comm_type or "p2p", own.context_parallel_size
    ulysses = {"a2a": cp, "a2a+p2p": (own.hierarchical_context_parallel_sizes or [1])[0]}.get(
        kind, 1
    )
    zero = {"optim_grads": 2, "optim_grads_params": 3}.get(
        cfg.ddp.data_parallel_sharding_strategy, int(bool(cfg.ddp.use_distributed_optimizer))
    )
    assert cfg.ddp.use_distributed_optimizer == cfg.optimizer.use_distributed_optimizer
    full = own.recompute_granularity == "full"
    even = chunk_layers(num_layers(load_model(model)), pp=pp, vpp=vpp) if pp > 1 else ()
    return Grid(
        tp=own.tensor_model_parallel_size,
        sp=bool(own.sequence_parallel),
        cp=cp,
        ulysses=ulysses,
        gather=kind == "allgather",
        ep=own.expert_model_parallel_size or 1,
        etp=own.expert_tensor_parallel_size or 1,
        pp=pp,
        vpp=vpp,
        microbatch=cfg.train.micro_batch_size,
        zero=zero,
        recompute=Recompute(own.recompute_granularity or "none"),
        recompute_layers=(
            own.recompute_num_layers if full and own.recompute_method == "block" else 0
        ),
        schedule="interleaved-1f1b" if vpp > 1 else "1f1b",
        layers=() if layers == even else layers,
        order=(
            ("tp", "cp", "ep", "pp", "dp")
            if cfg.dist.use_tp_pp_dp_mapping
            else ("tp", "cp", "ep", "dp", "pp")
        ),
        offload=round(100 * (cfg.optimizer.optimizer_offload_fraction or 0.0)),
    )


@in_both
@pytest.mark.parametrize("model", MODELS)
def test_random_strategies_are_read_back(model: str, tmp_path: Path) -> None:
    compared = 0
    for number in numbers(30, 200):
        grid = drawn(Random(f"{model} {number}"), model)
        if not legal(grid, model):
            continue
        facts = facts_of(grid, model)
        grid = canonical(grid, facts=facts)
        found = configured(grid, model, tmp_path)
        assert (
            found.train.global_batch_size,
            found.model.seq_length,
            found.dataset.seq_length,
        ) == (BATCH, LENGTH, LENGTH)
        again = replace(read_back(found, model), dp=grid.dp)
        assert again == replace(
            grid, order=again.order if 1 in (grid.dp, grid.pp) else grid.order
        ), print_grid(grid)
        compared += 1
    assert compared > 10


def test_a_model_s_sizes_are_fields(tmp_path: Path) -> None:
    own = configured(parse_grid("tp2 sp dp8 ep8 zero1"), "deepseek-v3-no-mtp", tmp_path).model
    assert (own.num_layers, own.hidden_size, own.ffn_hidden_size, own.moe_ffn_hidden_size) == (
        61,
        7168,
        18432,
        2048,
    )
    assert (own.q_lora_rank, own.kv_lora_rank, own.qk_head_dim, own.qk_pos_emb_head_dim) == (
        1536,
        512,
        128,
        64,
    )
    assert own.moe_layer_freq == [0] * 3 + [1] * 58
    assert (own.num_moe_experts, own.layernorm_epsilon, own.gated_linear_unit) == (256, 1e-6, True)
    assert (own.share_embeddings_and_output_weights, own.add_bias_linear) == (False, False)


def test_options_are_fields(tmp_path: Path) -> None:
    words = (
        "tp2 sp dp4 zero1 recompute=selective grad_dtype=fp32 graphs=iteration loss=native"
        " recompute_norms=on param_overlap=off"
    )
    found = configured(parse_grid(words), "llama-3.1-8b", tmp_path, allow_lossy=False)
    assert (found.mixed_precision.recipe, found.mixed_precision.grad_reduce_in_fp32) == (
        "bf16_mixed",
        True,
    )
    assert (found.model.cuda_graph_impl, found.model.cuda_graph_scope) == (
        "local",
        ["full_iteration"],
    )
    assert (found.model.cross_entropy_loss_fusion, found.model.cross_entropy_fusion_impl) == (
        True,
        "native",
    )
    assert found.model.recompute_modules == ["core_attn", "layernorm"]
    assert found.env_vars == {"NVTE_FUSED_ATTN": "1"}
    overlap = found.comm_overlap
    assert (overlap.tp_comm_overlap, overlap.overlap_grad_reduce, overlap.overlap_param_gather) == (
        True,
        True,
        False,
    )


def test_a_recipe_of_another_model_is_an_error(tmp_path: Path) -> None:
    one = stored(parse_grid("dp8 zero1"), runtime="megatron-bridge")
    write_export(export_plan(one, target="megatron-bridge", allow_lossy=True), tmp_path)
    recipe = SimpleNamespace(env_vars={}, **{name: SimpleNamespace() for name in FIELDS})
    with stood_in(), pytest.raises(AttributeError, match="take a recipe of the plan's model"):
        runpy.run_path(str(tmp_path / f"{MODULE}.py"))[FUNCTION](recipe)


@pytest.mark.parametrize(
    ("text", "model", "what"),
    [
        ("pp4 dp2 zero1 schedule=zb-h1", "llama-3.1-8b", "the schedule zb-h1"),
        ("pp2 dp4 zero3", "llama-3.1-8b", "zero3 with pp 2"),
        ("dp8 zero1", "gpt-oss-20b", "sinks"),
        ("tp2 sp dp4 zero1 tp_overlap=none", "llama-3.1-8b", "tp_overlap=none (instead"),
    ],
)
def test_what_it_cannot_say_is_named(text: str, model: str, what: str) -> None:
    with pytest.raises(StrategyError, match=r"\[export\.(refused|lossy)\]") as error:
        export_plan(
            stored(parse_grid(text), model=model, runtime="megatron-bridge"),
            target="megatron-bridge",
        )
    assert what in str(error.value)
