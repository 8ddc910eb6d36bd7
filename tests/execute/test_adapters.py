"""Adapters on frozen weights: FLOPs and bytes against PyTorch's own counts, and training against
the unsplit model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode

from shardwright.api.simulate_strategy_and_verify_stored import simulate
from shardwright.cost.lower_model_blocks_under_structure import block_context
from shardwright.errors import StrategyError
from shardwright.execute.checkpoints.draw_initial_parameter_values import InitialValues
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.numerics.registry import numerics_of
from shardwright.execute.proof.model_with_divided_widths import narrower_model
from shardwright.execute.proof.prove_plan import prove_plan, random_batch
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    run_step,
    single_device_plan,
)
from shardwright.execute.weights.parameter_slices_of_stored_tensors import adapter_keys
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job_from_flags import job_from_flags
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.program.block.block_program import KernelKind, Phase
from shardwright.program.block.grid_operator_cuts import Structure
from shardwright.program.block.lower_block import lower_block
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import DEFAULT, load_runtime
from shardwright.search.search_request import Request
from tests.execute.counts import problem_of
from tests.execute.small_plans import Small, _one
from tests.execute.test_counts import same
from tests.execute.test_plans import assert_equal
from tests.program.unfold import gemm_flops
from tests.strategy.zoo_models import dense, sparse

TOKENS = 32


def adapted(text: str, *, layers: int = 2) -> Model:
    return trained(dense(layers=layers), text)


def torch_flops(operator: Operator) -> tuple[int, int]:
    """FLOPs of forward and backward of y = x W (+ (x A) B) in PyTorch, where x has a gradient, as
    PyTorch counts them."""
    size = {p.name: [e.size for e in p.extents] for p in operator.parameters}
    made = {
        p.name: torch.zeros(size[p.name], requires_grad=p.trainable)
        for p in operator.parameters
        if len(size[p.name]) == 2
    }
    x = torch.zeros(TOKENS, operator.reads[0].size, requires_grad=True)
    counts = []
    with FlopCounterMode(display=False) as forward:
        outputs = [x @ made[p.name] for p in operator.parameters[: len(operator.writes)]]
        if operator.adapted:
            down, *ups = operator.adapters
            inner = x @ made[down.name]
            outputs = [y + inner @ made[up.name] for y, up in zip(outputs, ups, strict=True)]
    counts.append(forward.get_total_flops())
    with FlopCounterMode(display=False) as backward:
        torch.autograd.backward(outputs, [torch.zeros_like(y) for y in outputs])
    return counts[0], backward.get_total_flops()


@pytest.mark.parametrize(
    "text",
    [
        "lora:r16",
        "frozen:mlp",
        *(
            pytest.param(one, marks=pytest.mark.proof)
            for one in ("all", "lora:r8:attn", "frozen:mlp,attn")
        ),
    ],
)
def test_products_are_those_that_pytorch_runs(text: str) -> None:
    model = adapted(text)
    job = job_from_flags(seq_len=TOKENS, global_batch=1)
    problem = Problem(
        model=model, cluster=parse_cluster("h100:1"), job=job, runtime=load_runtime(DEFAULT)
    )
    ones = {
        axis: np.ones(1, dtype=np.int64)
        for axis in ("mbs", "tp", "ring", "ulysses", "ep", "etp", "dp", "cp", "pp")
    }
    for block in model.blocks:
        lowered: Counter[tuple[str, bool]] = Counter()
        for work in lower_block(block, Structure(), block_context(problem, block)).works:
            if work.kernel is KernelKind.GEMM and work.attention is None:
                lowered[work.operator, work.phase is Phase.F] += gemm_flops(work, ones)
        for operator in (o for o in block.operators if o.kind is OperatorKind.LINEAR):
            assert (lowered[operator.name, True], lowered[operator.name, False]) == torch_flops(
                operator
            ), operator.name


def test_memory_is_that_of_the_adapters_alone() -> None:
    """Parameters of all at 2 bytes; gradients at 4 and states at 12 bytes of what is trained; and
    no input of a frozen product."""
    asked = Request(model="llama-3.2-1b", cluster="h100:1", seq_len=1024, global_batch=1)
    full = simulate(asked, strategy="mbs1")
    lora = simulate(replace(asked, train="lora:r16"), strategy="mbs1")
    frozen = simulate(replace(asked, train="frozen:mlp"), strategy="mbs1")
    for found in (full, lora, frozen):
        items = dict(found.stages[0].items)
        assert items["parameters"] == 2 * found.model.parameters
        assert items["gradients"] == 4 * found.model.trainable
        assert items["optimizer"] == 12 * found.model.trainable
    assert (full.full_bytes, lora.full_bytes, frozen.full_bytes) == (
        0,
        full.reserved_bytes,
        full.reserved_bytes,
    )
    mlp = (
        16 * 1024 * 2 * (2048 + 8192)
    )  # the normed stream, which nothing else keeps, and what goes down
    assert (
        dict(full.stages[0].items)["activations"] - dict(frozen.stages[0].items)["activations"]
        == mlp
    )
    assert frozen.step_time_s < full.step_time_s


@pytest.mark.parametrize(
    "split",
    [
        "all = t2 b2",
        *(
            pytest.param(one, marks=pytest.mark.proof)
            for one in ("all = b4", "all = t2 b2; stream = b2 s2")
        ),
    ],
)
def test_adapters_train_like_the_unsplit_model_and_as_counted(split: str) -> None:
    small = Small(body=_one(split), whole=partial(adapted, "lora:r16"), zero="zero all: all/1/1\n")
    assert_equal(prove_plan(small.model, small.job, small.plan))
    same(problem_of(small.plan, model=small.model, job=small.job))


def test_adapters_begin_at_zero_and_no_checkpoint_has_them() -> None:
    model = adapted("lora:r16:qkv")
    values = InitialValues(model=model, seed=1, dtype=torch.float32)
    run = next(i for i, r in enumerate(model.runs) if r.count > 1)
    keys = sorted(k for k in adapter_keys(model) if k[:2] == (run, 0))
    assert [k[3] for k in keys] == ["qkv.lora_a", "qkv.lora_b", "qkv.lora_b.1", "qkv.lora_b.2"]
    assert [bool(values(key).any()) for key in keys] == [True, False, False, False]


def test_adapters_behind_a_frozen_embedding_have_gradients() -> None:
    """Nothing before the first layer is trained, so that its input has no gradient; both factors of
    its adapters have one."""
    model = trained(sparse(dense_layers=1, layers=1), "lora:r4:attn,mlp")
    small = narrower_model(model)
    job = job_from_flags(seq_len=8, global_batch=2)
    step = run_step(
        small,
        job,
        single_device_plan(small, job),
        batch=random_batch(small, job, seed=0),
        source=seeded(small, seed=0),
    )
    (store,) = step.stores.values()
    found = {
        key: held.gradient
        for key, boxes in store.held.items()
        for held in boxes.values()
        if "lora" in key[3]
    }
    first = {run.name: i for i, run in enumerate(small.runs) if run.count == 1}
    assert any(key[0] in first.values() for key in found)
    assert all(gradient is not None and bool(gradient.any()) for gradient in found.values())


def test_adapters_of_routed_experts_are_refused_by_name() -> None:
    model = trained(sparse(dense_layers=1, layers=1), "lora:r4:experts")
    operator = next(o for b in model.blocks for o in b.operators if o.adapted)
    with pytest.raises(StrategyError, match=r"execute\.adapters"):
        numerics_of(operator)


def test_zero3_cuts_the_frozen_base_too() -> None:
    """An eighth of all parameters lies on each device; whole are the root, and the layer at work
    with the one ahead of it."""
    asked = Request(
        model="llama-3.2-1b",
        cluster="h100:8",
        seq_len=1024,
        global_batch=8,
        train="lora:r4",
        runtime="torchtitan",
    )
    found = simulate(asked, strategy="dp8 mbs1 zero3")
    model = trained(load_model("llama-3.2-1b"), "lora:r4")
    frozen, root, layer = (
        found.model.parameters - found.model.trainable,
        *(_stored(model, ends=ends) for ends in (True, False)),
    )
    runtime = load_runtime("torchtitan")
    assert runtime.gathers_from_master
    whole = root + layer * (1 + runtime.gather_prefetch)
    items = dict(found.stages[0].items)
    assert items["parameters"] == 2 * (frozen // 8 + whole)
    assert items["optimizer"] == 12 * found.model.trainable // 8


def _stored(model: Model, *, ends: bool) -> int:
    """Elements of the embedding and the head, or of the largest other block."""
    sizes = [
        (b.has_vocabulary, sum(p.size for o in b.operators for p in o.parameters if not p.tied_to))
        for b in model.blocks
    ]
    found = [size for words, size in sizes if words is ends]
    return sum(found) if ends else max(found)
