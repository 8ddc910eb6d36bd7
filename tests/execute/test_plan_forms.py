"""Plans whose tensors lie where no usual collective reaches them: each one trains like the unsplit
model."""

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.proof.prove_plan import prove_plan
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.text.parse_plan import parse_plan
from tests.strategy.zoo_models import dense, encoder_decoder, hybrid, sparse
from tests.tiers import cases, chosen

SHARED = partial(dense, layers=2, kv_heads=4)
HYBRID = partial(hybrid, layers=4)
WHOLE = "  stages embed+{layers}+head on 0\n"


def assert_equal(
    model: Model, stages: str, *, devices: int, lane: str = "samples 4 in 2", order: str = "1f1b"
) -> None:
    """A step of the plan is that of the unsplit model, to 1e-10."""
    text = f"plan form devices {devices}\nlane main {lane}\n{stages}\norder {order}(main)"
    job = TrainingJob(
        sequences=tuple(SequenceLength(name=name, tokens=64) for name in ("text", "encoder")),
        global_batch=4,
    )
    found = prove_plan(model, job, parse_plan(text))
    assert found.equal, f"loss {found.loss_difference:+.1e}, {found.worst[0]} {found.worst[1]:.1e}"


@pytest.mark.parametrize(
    ("split", "devices"),
    [
        ("all = s8\n    core = h8", 8),  # devices of one key head return parts of its cotangent
        ("all = t8\n    core = t4 x2", 8),  # what one returns belongs to two makers
        ("all = t6\n    core = h[3:3:2]{., .+1, .+2}", 6),  # parts that do not nest
        ("all = t3\n    core = h2 s4 +1 via gather", 9),
    ],
)
def test_key_heads_shared_otherwise_than_they_were_made(split: str, devices: int) -> None:
    assert_equal(SHARED(), f"{WHOLE.format(layers=2)}    {split}", devices=devices)


KEYS = (SHARED, partial(dense, layers=2, kv_heads=16))


@pytest.mark.parametrize(
    ("model", "exchange"),
    chosen(product(KEYS, ("ring", "gather")), [(KEYS[0], "ring"), (KEYS[1], "gather")]),
)
def test_positions_of_which_one_part_is_cut_by_heads(
    model: Callable[[], Model], exchange: str
) -> None:
    split = f"all = s[2:1]{{t2, .+2}} via {exchange}"
    assert_equal(model(), f"{WHOLE.format(layers=2)}    {split}", devices=3)
    assert_equal(
        model(),
        f"{WHOLE.format(layers=2)}    {split}",
        devices=3,
        lane="samples 4 in 2 slices 2:1",
        order="terapipe",
    )


def test_memory_of_which_one_part_is_cut_by_heads() -> None:
    stages = (
        "  stages encoder_embed+encoder+encoder_norm+embed+decoder+head on 0\n    all = s[2:1]{t2,"
        " .+2} via gather"
    )
    assert_equal(encoder_decoder(layers=1), stages, devices=3)


@pytest.mark.parametrize(
    ("cut", "on", "split"),
    cases(
        [
            ("+embed+decoder:1, decoder:1", "0, 2", "all = t2\n    stream = s2"),
            (", embed+decoder:1, decoder:1", "0, 1, 2", "all = ."),
            ("+embed+decoder:2", "0", "all = s2 t2 via gather"),
            ("+embed+decoder:2", "0", "all = b2 s2z via ring"),
        ],
        2,
    ),
)
def test_layers_that_share_a_table_of_biases(cut: str, on: str, split: str) -> None:
    """In one stage or several, by heads and by positions: each has a part of the table's
    gradient."""
    stages = f"  stages encoder_embed+encoder:2+encoder_norm{cut}+head on {on}\n    {split}"
    assert_equal(encoder_decoder(layers=2), stages, devices=4 if split != "all = ." else 3)


RECURRENCES = [
    *product(("all = .", "all = s2z via ring"), ("samples 4 in 2 slices 2:1",)),
    ("all = s[2:1]{t2, .+2} via ring", "samples 4 in 2"),
    *(
        pytest.param(*one, marks=pytest.mark.proof)
        for one in (
            *product(("all = .", "all = s2z via ring", "all = s2 via ring"), ("samples 4 in 2",)),
            *product(
                ("all = s2 via ring", "all = s[2:1]{t2, .+2} via ring"),
                ("samples 4 in 2 slices 2:1",),
            ),
        )
    ),
]


@pytest.mark.parametrize(("split", "lane"), RECURRENCES)
def test_recurrences_over_cut_positions(split: str, lane: str) -> None:
    stages = f"{WHOLE.format(layers=4)}    {split}"
    assert_equal(
        HYBRID(),
        stages,
        devices={"all = .": 1}.get(split, 3),
        lane=lane,
        order="terapipe" if "slices" in lane else "1f1b",
    )


def cut_module(*, before: str) -> tuple[str, str]:
    """The operators of a predictor module, cut before one of them."""
    model = sparse(dense_layers=1, layers=1, predictors=1)
    block = next(model.blocks[run.block] for run in model.runs if run.name == "mtp")
    names = [f"mtp.{o.name}" for o in block.operators]
    place = names.index(f"mtp.{before}")
    return "+".join(names[:place]), "+".join(names[place:])


CUTS = [
    *("qkv", "route", "experts.up"),
    *(
        pytest.param(name, marks=pytest.mark.proof)
        for name in ("norm2", "unpermute", "core", "proj", "permute", "experts.act", "residual2")
    ),
]
"""Operators that a block is cut before: with one stream or two on the way, with routes, with tokens
at their experts."""


@pytest.mark.parametrize("before", CUTS)
def test_cut_inside_a_block_with_residuals_and_experts(before: str) -> None:
    one, two = cut_module(before=before)
    stages = (
        f"  stages embed+1+1+head+{one}, {two}+mtp_head on 0, 4\n    all = t4\n    stream = s4\n   "
        " router = s4\n    experts = e2 f2"
    )
    assert_equal(sparse(dense_layers=1, layers=1, predictors=1), stages, devices=8)


def test_predictor_that_looks_up_the_next_tokens() -> None:
    sizes = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
    }
    experts = {
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
    }
    layers = {"num_hidden_layers": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1}
    config = {
        "architectures": ["Glm4MoeForCausalLM"],
        "vocab_size": 64,
        "rms_norm_eps": 1e-5,
        "use_qk_norm": True,
        **sizes,
        **experts,
        **layers,
    }
    model = model_from_config({**config, "max_position_embeddings": 64}, name="small-glm")
    split = "    all = t2\n    stream = s2\n    router = s2\n    experts = e2"
    assert_equal(model, f"  stages embed+1+1+head, mtp+mtp_head on 0, 2\n{split}", devices=4)
