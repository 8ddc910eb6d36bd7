"""Which grids PyTorch can express, what is said of the others, and decoders of every family against
the interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional

from shardwright.errors import StrategyError
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.native.apply_dtensor_and_fsdp_to_stages import load_rank_parameters
from shardwright.execute.native.decoder_stage_as_torch_modules import NativeStage
from shardwright.execute.native.grids_that_torch_can_run import (
    differences_from_plan,
    require_expressible_grid,
    why_not_expressible,
)
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    run_step,
    single_device_plan,
)
from shardwright.job.training_job import Optimizer, OptimizerFamily
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.block import Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.program.stages.stage_segments import plan_stages
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.grid.plan_to_grid_and_order_table import grid_form
from shardwright.strategy.plan.pipeline_order import NamedOrder, Table
from tests.execute.native_ranks import balanced
from tests.execute.published_configs import PUBLISHED
from tests.execute.small_models import small_model
from tests.execute.small_plans import PLANS
from tests.jobs import training_job
from tests.strategies import dense_model, expert_model
from tests.strategy.rule_ids import rule_ids

FAMILIES = (
    "llama-7b",
    "mistral-7b",
    "phi-3-mini",
    "qwen2-7b",
    "qwen3-0.6b",
    "gemma-2b",
    "gemma-3-1b",
    "glm-4-9b",
    "glm-4-32b",
    "megatron-1.7b",
    "gpt-neox-20b",
    "opt-6.7b",
    "falcon-7b",
    "falcon-40b",
    "nemotron-4-15b",
    "mixtral-8x7b",
    "qwen1.5-moe-a2.7b",
    "qwen3-30b-a3b",
    "llama-4-scout-text",
    "llama-4-maverick-text",
    "minimax-m2.5",
    "deepseek-v2",
    "deepseek-v3-no-mtp",
)
OTHERS = (
    "gemma-2-2b",
    "bloom-7b1",
    "gpt-oss-20b",
    "mamba-codestral-7b",
    "glm-4.5",
    "mimo-7b",
    "bert-base",
    "t5-11b",
)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "vocab_size": 20,
    "num_hidden_layers": 1,
}
NORMED_WIDE = {
    **SIZES,
    "architectures": ["Olmo2ForCausalLM"],
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32,
}
WRITTEN = {"wide": NORMED_WIDE, "gemma 4": PUBLISHED["gemma4"]}
JOB = training_job(seq_len=16, global_batch=8)


@pytest.mark.parametrize("name", [*FAMILIES, *WRITTEN])
def test_a_family_has_the_loss_and_gradients_of_the_interpreter(name: str) -> None:
    model = (
        small_model(name) if name not in WRITTEN else model_from_config(WRITTEN[name], name=name)
    )
    job, settings = training_job(seq_len=7, global_batch=2), Settings(rope_base=500.0)
    source = seeded(model, seed=3)
    tokens = torch.randint(0, model.vocab, (2, 8), generator=torch.Generator().manual_seed(5))
    labels = tokens[:, 1:].clone()
    labels[0, 2] = -1
    plan = single_device_plan(model, job)
    expected = run_step(
        model,
        job,
        plan,
        batch={"text": tokens[:, :-1], "labels": labels},
        source=source,
        settings=settings,
    )
    (store,) = expected.stores.values()

    ((part,),) = plan_stages(plan, model=model)
    stage = NativeStage(part, model=model, settings=settings)
    load_rank_parameters(stage, source=source, dtype=torch.float64, device="cpu")
    wanted = torch.where(labels < 0, -100, labels).flatten()
    loss = (
        functional.cross_entropy(stage(tokens[:, :-1]).flatten(0, 1), wanted, reduction="sum")
        / labels.numel()
    )
    loss.backward()

    assert abs(float(loss.detach()) - float(expected.loss)) < 1e-12
    found: dict[object, torch.Tensor] = {}
    for own, key, lying in stage.parameter_keys():
        parameter = stage.get_parameter(own)
        assert torch.equal(parameter.detach(), lying.to_module(source(key)))
        (held,) = store.held[key].values()
        wanted = lying.to_module(
            held.gradient if held.gradient is not None else torch.zeros_like(held.value)
        )
        # Both uses of a tied parameter have it in one layout; the interpreter's gradient is their
        # sum.
        found[key] = found.get(key, -wanted) + (parameter.grad if parameter.grad is not None else 0)
    assert set(found) == set(store.held)
    assert max(float(difference.abs().max()) for difference in found.values()) < 1e-12


@pytest.mark.parametrize("name", OTHERS)
def test_other_families_are_refused(name: str) -> None:
    found = why_not_expressible(
        small_model(name), Grid(), job=training_job(seq_len=7, global_batch=2)
    )
    assert found is not None
    assert found.rule in ("native.model", "native.operator")


REFUSED = {
    "native.offload": (Grid(dp=2, zero=1, offload=50), dense_model()),
    "native.balance": (Grid(pp=2), balanced()),
    "native.slices": (Grid(pp=2, slices=2, schedule="seq-1f1b"), dense_model()),
    "native.schedule": (Grid(pp=2, schedule="dualpipe"), dense_model()),
    "native.model": (Grid(), expert_model(predictors=1)),
    "native.operator": (Grid(tp=2), model_from_config(NORMED_WIDE, name="wide")),
    "native.uneven": (Grid(tp=16), dense_model()),
}


def test_every_rule_has_an_example() -> None:
    assert set(REFUSED) == set(rule_ids("execute/native", "native"))


@pytest.mark.parametrize("rule", REFUSED)
def test_a_refusal_names_its_rule_and_what_to_do(rule: str) -> None:
    grid, model = REFUSED[rule]
    found = why_not_expressible(model, grid, job=JOB)
    assert found is not None
    assert found.rule == rule
    assert found.hint
    with pytest.raises(StrategyError, match=rf"\[{rule}\].*--backend torch-native"):
        require_expressible_grid(model, grid, job=JOB)


def _biased(block: Block) -> Block:
    """The block with a bias of every expert's products."""

    def more(operator: Operator) -> Operator:
        if operator.kind is not OperatorKind.GROUPED_LINEAR:
            return operator
        biases = tuple(
            replace(p, name=f"{p.name}.bias", extents=(p.extents[0], p.extents[2]))
            for p in operator.parameters
        )
        return replace(operator, parameters=(*operator.parameters, *biases))

    return replace(block, operators=tuple(map(more, block.operators)))


@pytest.mark.parametrize(
    ("grid", "model", "part"),
    [
        (
            Grid(dp=12, ep=2, etp=2, zero=3),
            expert_model(ffn=128),
            "no dim of 8 x 128 x 64 (experts.up, on one of ep 2 x etp 2)",
        ),
        (Grid(tp=4, dp=4), expert_model(ffn=62), "62 experts' feed-forward do not divide by tp 4"),
        (
            Grid(dp=4, etp=2),
            replace(expert_model(), blocks=tuple(map(_biased, expert_model().blocks))),
            "has biases, which every part of an expert would add",
        ),
        (
            Grid(cp=8, tp=4, sp=True, gather=True),
            dense_model(),
            "2 positions do not divide by tp 4",
        ),
    ],
)
def test_what_lies_otherwise_is_refused_by_name(grid: Grid, model: Model, part: str) -> None:
    found = why_not_expressible(model, grid, job=training_job(seq_len=16, global_batch=24))
    assert found is not None
    assert part in found.message


def test_another_optimizer_is_refused() -> None:
    with pytest.raises(StrategyError, match=r"run\.optimizer"):
        require_expressible_grid(
            dense_model(),
            Grid(),
            job=replace(JOB, optimizer=Optimizer(family=OptimizerFamily.SGD, states=())),
        )


@pytest.mark.parametrize(
    "grid",
    [
        Grid(),
        Grid(tp=8, sp=True, dp=4, zero=3),
        Grid(tp=4, pp=2, dp=2, order=("pp", "dp", "tp", "cp", "ep")),
        Grid(dp=4, zero=3, shard=2, recompute=Recompute.SELECTIVE),
        Grid(pp=4, vpp=2, schedule="zb-v", recompute=Recompute.FULL),
        Grid(cp=4, ulysses=4, zero=3),
        Grid(cp=4, ulysses=2, gather=True, tp=2, sp=True),
        Grid(cp=4, ulysses=2, tp=2, sp=True),
        Grid(cp=2),
    ],
)
def test_what_is_expressed(grid: Grid) -> None:
    assert why_not_expressible(dense_model(), grid, job=JOB) is None


@pytest.mark.parametrize(
    "grid",
    [
        Grid(dp=8, ep=4, zero=3),
        Grid(tp=2, sp=True, dp=2),
        Grid(tp=2, sp=True, cp=2, gather=True, dp=2, ep=8),
    ],
)
def test_what_is_expressed_with_experts(grid: Grid) -> None:
    assert why_not_expressible(expert_model(), grid, job=JOB) is None


def test_norms_over_all_heads_are_refused_only_under_tp() -> None:
    model = model_from_config(NORMED_WIDE, name="wide")
    job = training_job(seq_len=8, global_batch=2)
    assert why_not_expressible(model, Grid(), job=job) is None
    found = why_not_expressible(model, Grid(tp=2), job=job)
    assert found is not None
    assert found.rule == "native.operator"


def test_remarks_say_what_differs() -> None:
    assert differences_from_plan(Grid(dp=2)) == ()
    assert differences_from_plan(Grid(dp=2, zero=3)) == ()
    assert len(differences_from_plan(Grid(dp=2, zero=1))) == 1
    assert len(differences_from_plan(Grid(dp=2, pp=2, zero=2))) == 2
    assert len(differences_from_plan(Grid(dp=2, pp=2, zero=3))) == 2
    assert len(differences_from_plan(Grid(cp=2, gather=True, zero=1))) == 2
    assert differences_from_plan(Grid(cp=2)) == ()
    assert (
        differences_from_plan(Grid(cp=2, gather=True, zero=3, recompute=Recompute.SELECTIVE)) == ()
    )


def test_a_plan_is_a_grid_with_a_table_of_its_own() -> None:
    small = PLANS["found order"]
    form = grid_form(small.plan, model=small.model)
    assert form is not None
    grid, table = form
    assert isinstance(table, Table)
    assert (grid.pp, grid.microbatch, small.plan.orders) == (4, 2, (table,))
    stages = plan_of(grid, model=small.model, global_batch=small.batch).lanes
    assert stages == small.plan.lanes


def test_a_named_grid_needs_no_table_and_other_plans_have_none() -> None:
    grid, model = Grid(tp=2, pp=2, microbatch=2), dense_model()
    assert grid_form(plan_of(grid, model=model, global_batch=8), model=model) == (grid, None)
    small = PLANS["tp2 then dp2"]
    assert isinstance(small.plan.orders[0], NamedOrder)
    assert grid_form(small.plan, model=small.model) is None
