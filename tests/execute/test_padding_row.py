"""The padding row of a table learns as in Transformers: not from lookups, but from a head that is
tied to the table."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("transformers", reason="Transformers is not installed")

from shardwright.execute.checkpoints.draw_initial_parameter_values import InitialValues
from shardwright.execute.checkpoints.read_checkpoint import SavedSource, read_checkpoint
from shardwright.execute.device_state.stored_parameter_parts import seeded, whole_shape
from shardwright.execute.training.device_training_state import create_device_state, prepare_training
from shardwright.execute.weights.write_weights import save_weights
from shardwright.job.training_job import TrainingJob
from shardwright.model.families.huggingface_config import load_config, model_from_config
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.text.parse_plan import parse_plan
from tests.execute.published_configs import PUBLISHED, batch_of, sequences_of
from tests.execute.published_sizes import PLAIN
from tests.execute.saved import save
from tests.execute.test_published_training import RULE, SAMPLES, TOKENS, opened, steps_of
from tests.execute.trained import train
from tests.tiers import chosen

ROW = 7
ONE_STAGE = (
    "plan small devices 4\n{shards}lane main samples 4 in 2\n  stages embed+2+head on 0\n    all ="
    " {split}\norder gpipe(main)\n"
)
TWO_STAGES = (
    "plan small devices 4\nzero all: all/1/1\nlane main samples 4 in 2\n"
    "  stages embed+1, 1+head on 0, 2\n    all = t2\n    stream = s2\norder 1f1b(main)\n"
)
SPLITS = {
    "vocabulary cut by rows": ONE_STAGE.format(shards="", split="t4"),
    "sharded parameters": ONE_STAGE.format(shards="zero all: all/all/all\n", split="b2 t2"),
    "both, in a pipeline": TWO_STAGES,
}


def small(tied: bool) -> dict[str, Any]:
    return {
        **PLAIN,
        "architectures": ["LlamaForCausalLM"],
        "tie_word_embeddings": tied,
        "pad_token_id": ROW,
    }


@pytest.mark.parametrize(
    ("tied", "cut"),
    chosen(product((True, False), SPLITS), {(not n % 2, name) for n, name in enumerate(SPLITS)}),
)
def test_tables_after_three_steps_are_those_of_transformers(
    tmp_path: Path, cut: str, tied: bool
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(small(tied)))
    model = load_config(config)
    source = seeded(model, seed=3)
    save_weights(source, model=model, config=config, folder=tmp_path / "first", dtype=torch.float64)
    published = opened(tmp_path / "first", "LlamaForCausalLM")
    ids = torch.randint(
        ROW - 2, ROW + 3, (3, SAMPLES, TOKENS + 1), generator=torch.Generator().manual_seed(1)
    )
    assert all((one[:, :-1] == ROW).any() for one in ids)
    batches = [batch_of(published, one) for one in ids]
    first = published.get_input_embeddings().weight[ROW].detach().clone()
    wanted = steps_of(published, batches)

    job = TrainingJob(sequences=sequences_of(model, tokens=TOKENS), global_batch=SAMPLES)
    known = prepare_training(model, job, parse_plan(SPLITS[cut]), rule=RULE)
    members = {
        device: create_device_state(device, known, source=source) for device in known.devices
    }
    assert [report.loss for report in train(members, known, batches)] == pytest.approx(
        wanted, abs=1e-6
    )

    saved = SavedSource(
        saved=read_checkpoint(save(members, known, tmp_path / "run"), model=model), frozen=source
    )
    save_weights(saved, model=model, config=config, folder=tmp_path / "last", dtype=torch.float64)
    table = opened(tmp_path / "last", "LlamaForCausalLM").get_input_embeddings().weight
    torch.testing.assert_close(table, published.get_input_embeddings().weight, rtol=0, atol=1e-6)
    # Without a gradient weight decay alone moves a row.
    decayed = first * (1 - RULE.rate * RULE.decay) ** 3
    assert torch.allclose(table[ROW], decayed, rtol=0, atol=1e-12) is not tied
    assert not torch.allclose(
        table[ROW + 1],
        source(next(iter(keys(model))))[ROW + 1] * (1 - RULE.rate * RULE.decay) ** 3,
        atol=1e-6,
    )


def keys(model: Model) -> list[Any]:
    """Key of the table of tokens."""
    operator = model.blocks[0].operators[0]
    return [(0, 0, operator.name, operator.parameters[0].name)]


@pytest.mark.parametrize("name", ["smollm3", "opt", "gpt-j", "t5"])
def test_the_padding_row_begins_as_in_transformers(name: str) -> None:
    """Zeros where the class pads, drawn as the other rows where it does not."""
    import transformers

    config = {**PUBLISHED[name], "pad_token_id": ROW}
    published_class = getattr(transformers, config["architectures"][0])
    published = published_class(
        published_class.config_class(**{k: v for k, v in config.items() if k != "architectures"})
    )
    zeros = bool((published.get_input_embeddings().weight[ROW] == 0).all())
    model = model_from_config(config, name="small")
    (key,) = keys(model)
    source = InitialValues(model=model, seed=0, dtype=torch.float64)
    drawn = source(key)
    assert bool((drawn[ROW] == 0).all()) is zeros is (name in ("smollm3", "opt"))
    assert (drawn[:ROW] != 0).all()
    assert (drawn[ROW + 1 :] != 0).all()
    rows, width = whole_shape(model, key)
    part = source.part(key, (((ROW - 1, rows),), ((1, width),)))
    torch.testing.assert_close(part, drawn[ROW - 1 :, 1:], rtol=0, atol=0)


def test_other_tables_of_a_lookup_have_no_padding_row() -> None:
    """Positions are learnt in every row."""
    model = model_from_config({**PUBLISHED["opt"], "pad_token_id": ROW}, name="small")
    operator = model.blocks[0].operators[0]
    drawn = InitialValues(model=model, seed=0, dtype=torch.float64)(
        (0, 0, operator.name, operator.parameters[1].name)
    )
    assert (drawn != 0).all()
