"""Blocks of keys that an indexer selects: the choice by hand, what it leaves out, cuts that can and
cannot run, what is not trained."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from shardwright.errors import ModelError, StrategyError
from shardwright.execute.checkpoints.same_computation_check import model_computation
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.numerics.attention.indexer_key_block_selection import (
    select_key_blocks,
    selected_mask,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.proof.prove_plan import prove_plan, random_batch
from shardwright.execute.proof.short_windows import reach_of, with_short_windows
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    StepResult,
    run_step,
    single_device_plan,
    step_differences,
)
from shardwright.execute.training.prepare_work_shared_by_devices import prepare_step
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import (
    AttentionShape,
    BlockChoice,
    Operator,
    OperatorClass,
    OperatorKind,
)
from shardwright.model.tensors_without_gradient import without_gradient
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.parse_plan import parse_plan
from tests.execute.counts import (
    lowered_messages,
    lowered_moves,
    lowered_parameters,
    lowered_sums,
    problem_of,
    ran,
    traced_messages,
    traced_moves,
    traced_sums,
)
from tests.execute.flips import Ending, Verdict, verdict
from tests.execute.published_configs import PUBLISHED
from tests.execute.published_sizes import Config
from tests.tiers import cases, in_both

ALONE = PUBLISHED["minimax m3 alone"]


def model_of(**more: object) -> Model:
    return model_from_config({**ALONE, **more}, name="indexed")


def small(**more: object) -> Model:
    return of_widths(**more) if more else usual_model()


@cache
def usual_model() -> Model:
    return of_widths()


def of_widths(**more: object) -> Model:
    wide = {"hidden_size": 64, "intermediate_size": 16, "dense_intermediate_size": 32}
    return model_of(**wide, num_key_value_heads=4, num_local_experts=8, index_n_heads=4, **more)


def job_of(*, text: int = 16, samples: int = 8) -> TrainingJob:
    return TrainingJob(sequences=(SequenceLength(name="text", tokens=text),), global_batch=samples)


def two_stages(first: str, last: str, *, more: str = "") -> str:
    lane = f"plan m3 devices 8\nlane main samples 8 in 2\n  stages embed+2 on 0\n    {first}\n"
    return f"{lane}{more}  stages 1+head on 4\n    {last}\norder 1f1b(main)\n"


def place_of(
    choice: BlockChoice, *, length: int, width: int, kind: OperatorKind = OperatorKind.INDEX
) -> OperatorShare:
    """A device with all of a sequence, and all of as many heads as the indexer has."""
    shape = AttentionShape(heads=choice.heads, kv_heads=1, head_dim=width, value_dim=0)
    operator = Operator(
        name="index",
        kind=kind,
        klass=OperatorClass.ATTN,
        inputs=("q", "k"),
        writes=(),
        attention=shape,
        choice=choice,
    )
    return OperatorShare(
        operator=operator,
        device=0,
        samples=((0, 1),),
        positions=((0, length),),
        length=length,
        reads=(),
        writes=(),
        parameters={},
        settings=Settings(rope_share=0.0),
        heads=(0, choice.heads),
        groups={},
    )


@pytest.mark.parametrize(
    ("local", "wanted"),
    [
        (0, [[0, -1], [0, -1], [0, 1], [0, 1], [0, 2], [0, 2]]),
        (1, [[0, -1], [0, -1], [1, 0], [1, 0], [2, 0], [2, 0]]),
        (2, [[0, -1], [0, -1], [0, 1], [0, 1], [1, 2], [1, 2]]),
    ],
)
def test_a_query_sees_its_own_blocks_and_the_best(local: int, wanted: list[list[int]]) -> None:
    """Six keys in blocks of two, whose products with every query are 5 1 2 3 4 0; two blocks a
    query."""
    choice = BlockChoice(size=2, count=2, local=local, heads=1, width=2)
    key = torch.tensor([[5.0, 0], [1, 0], [2, 0], [3, 0], [4, 0], [0, 0]]).unsqueeze(0)
    query = torch.tensor([1.0, 0.0]).expand(1, 6, 2)
    place = place_of(choice, length=6, width=2)
    (found,) = select_key_blocks(place, ((query,), (key,)), {})
    assert [sorted(row) for row in found[0].tolist()] == [sorted(row) for row in wanted]
    core = place_of(choice, length=6, width=2, kind=OperatorKind.ATTENTION)
    seen = selected_mask(core, found, torch.arange(6))[0, 0]
    assert seen.tolist() == [[at // 2 in row for at in range(6)] for row in wanted]


def test_each_head_of_the_scorer_selects_for_its_own_heads() -> None:
    choice = BlockChoice(size=1, count=1, local=0, heads=2, width=1)
    query = torch.tensor([1.0, -1.0]).expand(1, 3, 2)
    key = torch.tensor([[1.0], [3.0], [2.0]]).unsqueeze(0)
    (found,) = select_key_blocks(place_of(choice, length=3, width=1), ((query,), (key,)), {})
    assert found[0].tolist() == [[0, 0], [1, 0], [1, 0]]
    core = place_of(choice, length=3, width=1, kind=OperatorKind.ATTENTION)
    shape = replace(core.operator.attention, heads=4)  # type: ignore[type-var]
    # The last two of four query heads are those of the scorer's second.
    core = replace(core, operator=replace(core.operator, attention=shape), heads=(1, 4))
    seen = selected_mask(core, found, torch.arange(3))[0]
    assert seen.int().argmax(-1).tolist() == [[0, 1, 1], [0, 0, 0], [0, 0, 0]]


@pytest.fixture(scope="module")
def usual_form(tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    pytest.importorskip("transformers", reason="Transformers is not installed")
    return verdict(ALONE, tmp_path_factory.mktemp("usual"))


@in_both
@pytest.mark.parametrize(
    ("more", "kept"),
    cases(
        [
            ({}, True),
            ({"index_topk_blocks": 4}, False),
            ({"index_local_blocks": 2, "index_block_size": 1}, False),
            ({"index_n_heads": 4, "index_head_dim": 4}, False),
            ({"index_n_heads": 1, "index_block_size": 3, "index_topk_blocks": 1}, False),
            ({"index_local_blocks": 0}, False),
        ],
        3,
    ),
    ids=str,
)
def test_other_indexers_are_those_of_transformers(
    tmp_path: Path, usual_form: Verdict, more: Config, kept: bool
) -> None:
    pytest.importorskip("transformers", reason="Transformers is not installed")
    found, usual = verdict({**ALONE, **more}, tmp_path / "one"), usual_form
    assert (found.ending, usual.ending) == (Ending.EQUAL, Ending.EQUAL), found.said
    assert (found.loss == usual.loss) is kept


EXPERTS = "\n    router = s2\n    experts = e2"
CUTS = (
    ("all = t2\n    stream = s2", f"all = b2{EXPERTS}"),
    ("all = b2", "all = t4\n    stream = s4"),
    (f"all = t2\n    stream = s2{EXPERTS}", "all = b4"),
    ("all = t4", "all = b2 t2"),
)


@pytest.mark.parametrize(("first", "last"), cases(CUTS[2:], 1))
def test_a_split_step_is_that_of_one_device(first: str, last: str) -> None:
    model, job, plan = small(), job_of(), parse_plan(two_stages(first, last))
    batch, source = random_batch(model, job, seed=1), seeded(model, seed=1)
    whole = run_step(model, job, single_device_plan(model, job), batch=batch, source=source)
    parts = run_step(model, job, plan, batch=batch, source=source)
    assert float(parts.loss - whole.loss) == pytest.approx(0.0, abs=1e-12)
    assert max(difference for *_, difference in step_differences(parts, whole)) < 1e-12
    assert prove_plan(model, job, plan).equal
    everything = replace(
        model,
        blocks=tuple(
            replace(b, operators=tuple(map(seeing_all, b.operators))) for b in model.blocks
        ),
    )
    other = run_step(
        everything, job, single_device_plan(everything, job), batch=batch, source=source
    )
    assert abs(float(other.loss - whole.loss)) > 1e-6


@pytest.mark.parametrize(
    ("cut", "more"),
    [
        (CUTS[2], {}),
        (("all = t4", "all = b2 t2"), {"mlp_layer_types": ["dense"] * 3}),
        pytest.param(
            ("all = t2\n    stream = s2", "all = t4\n    stream = s4"),
            {"mlp_layer_types": ["dense"] * 3},
            marks=pytest.mark.proof,
        ),
    ],
)
def test_what_moves_is_what_is_lowered(cut: tuple[str, str], more: Config) -> None:
    """No cotangent comes back from an indexer, and nothing moves from it to its core."""
    asked = problem_of(parse_plan(two_stages(*cut)), model=small(**more), job=job_of())
    found = ran(asked)
    assert traced_moves(found.records) == lowered_moves(asked)
    assert traced_messages(found.records) == lowered_messages(asked)
    assert traced_sums(found.records) == lowered_sums(asked)
    assert found.parameters == lowered_parameters(asked)


def step(plan: Plan) -> StepResult:
    model, job = small(), job_of()
    batch, source = random_batch(model, job, seed=1), seeded(model, seed=1)
    return run_step(model, job, plan, batch=batch, source=source)


@cache
def unsplit_step() -> StepResult:
    return step(single_device_plan(small(), job_of()))


@pytest.mark.parametrize(
    "line",
    cases(
        [
            "recompute 0-: core",
            "recompute 0-: full",
            "recompute 0-: norm1,index",
            "recompute 0-: attn,core",
        ],
        2,
    ),
)
def test_what_was_selected_is_selected_again(line: str) -> None:
    plan = parse_plan(two_stages("all = t2", "all = b2", more=f"    {line}\n"))
    parts = step(plan)
    assert max(difference for *_, difference in step_differences(parts, unsplit_step())) < 1e-12


@pytest.mark.parametrize(
    "asked", cases(["lora:r4:attn,mlp", "frozen:embed", "frozen:moe_indexed,embed"], 1)
)
def test_a_model_that_selects_may_be_frozen_or_have_adapters(asked: str) -> None:
    """Adapters of an indexer have gradients of zero."""
    found = prove_plan(trained(small(), asked), job_of(), parse_plan(two_stages(*CUTS[0])))
    assert found.equal, (found.loss_difference, found.worst)


def seeing_all(operator: Operator) -> Operator:
    choice = operator.choice
    return operator if choice is None else replace(operator, choice=replace(choice, size=64))


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        ("all = s2\n    core = s2 via ring", "all = t2", "scores all keys of a text"),
        ("all = t2", "all = s2\n    core = s2 via gather", "scores all keys of a text"),
        ("all = b2\n    core = b4", "all = t2", "or of other samples"),
    ],
)
def test_cuts_through_what_an_indexer_scores_are_refused_before_a_step(
    first: str, last: str, said: str
) -> None:
    model, job = small(), job_of()
    with pytest.raises(StrategyError, match=said) as error:
        prepare_step(model, job, parse_plan(two_stages(first, last)))
    assert error.value.rule == "execute.selected"


@pytest.mark.parametrize("cut", ["index_k", "core", "proj"])
def test_a_cut_between_an_indexer_and_its_core_is_refused(cut: str) -> None:
    """Cuts between other operators of a block leave each of them alone, a core too."""
    model = small(num_hidden_layers=1, mlp_layer_types=["dense"], layer_types=["minimax_m3_sparse"])
    operators = [f"{model.runs[1].name}.{o.name}" for o in model.blocks[1].operators]
    at = operators.index(f"{model.runs[1].name}.{cut}")
    text = (
        "plan m3 devices 2\nlane main samples 8 in 2\n  stages"
        f" {'+'.join(['embed', *operators[:at]])}, {'+'.join([*operators[at:], 'head'])} on 0, 1\n "
        "   all = .\norder gpipe(main)\n"
    )
    with pytest.raises(StrategyError, match="an indexer of another stage selects") as error:
        prepare_step(model, job_of(), parse_plan(text))
    assert error.value.rule == "execute.selected"


def test_single_keys_are_refused() -> None:
    """DeepSeek-V3.2's scorer sums its heads, and selects keys one by one."""
    model = load_model("deepseek-v3.2")
    with pytest.raises(StrategyError, match="single keys that an indexer selects") as error:
        prepare_step(model, job_of(samples=1), single_device_plan(model, job_of(samples=1)))
    assert error.value.rule == "execute.selected"


def test_nothing_goes_back_through_a_selection() -> None:
    """What the indexer is made of is not trained, and its tensors have no gradient; an indexer that
    is trained keeps its own."""
    block = next(b for b in small().blocks if b.name == "moe_indexed")
    names = {"index_q", "index_q_norm", "index_k", "index_k_norm", "index"}
    assert without_gradient(block) == names
    assert all(not p.trainable for o in block.operators if o.name in names for p in o.parameters)
    other = next(
        b for b in load_model("deepseek-v3.2").blocks if any(o.name == "index" for o in b.operators)
    )
    assert not without_gradient(other)


def test_sizes_of_an_indexer_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match="3 heads of the indexer do not divide the 4 query heads"):
        model_of(index_n_heads=3)
    with pytest.raises(ModelError, match="3 local blocks are more than the 2"):
        model_of(index_local_blocks=3)
    assert (
        "heads of an indexer that are narrower than what turns of a head"
        in model_of(index_head_dim=2).differs
    )


def test_a_proof_selects_some_of_its_short_sequence() -> None:
    """As the long one: 32 of 64 keys become 6 of 16."""
    model = with_short_windows(model_of(index_block_size=16), {"text": reach_of(16, whole=64)})
    choices = {o.name: o.choice for b in model.blocks for o in b.operators if o.choice is not None}
    assert {(name, one.size, one.count) for name, one in choices.items()} == {
        ("index", 3, 2),
        ("core", 3, 2),
    }


def test_a_checkpoint_says_how_keys_are_selected() -> None:
    model = model_of()
    found = model_computation(model, model.settings)
    assert found["moe_indexed.core.choice.size"] == 2
    assert found["moe_indexed.index.choice.local"] == 1
