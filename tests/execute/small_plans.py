"""Small problems and plans that train in seconds: of every form, for at most eight devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch

from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.interpreter.prepared_step import Batch
from shardwright.execute.proof.model_with_divided_widths import narrower_model
from shardwright.execute.training.adamw_optimizer import AdamW
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    single_device_plan,
)
from shardwright.execute.training.device_training_state import (
    DeviceState,
    PreparedTraining,
    create_device_state,
    prepare_training,
)
from shardwright.execute.training.training_loop import StepReport
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.parse_plan import parse_plan
from tests.execute.small_models import small_model
from tests.execute.trained import train
from tests.strategy.zoo_models import dense, encoder_decoder, sparse

TOKENS = 16
RULE = AdamW(rate=3e-3, clip=1.0)


def tied(layers: int = 2) -> Model:
    """Layers under a head that is the embedding, which has a row of padding."""
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 64,
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        **sizes,
        "num_hidden_layers": layers,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 40,
    }
    return model_from_config({**config, "max_position_embeddings": 64}, name="tied")


def adapted() -> Model:
    """Two layers, of which adapters alone are trained."""
    return trained(dense(layers=2), "lora:r4")


DENSE2, DENSE4 = partial(dense, layers=2), partial(dense, layers=4)
SPARSE = partial(sparse, dense_layers=1, layers=1)
LATENT = partial(small_model, "deepseek-v2-lite")
MAMBA2 = partial(small_model, "mamba-codestral-7b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """A plan and what it trains; `zero` lines come before `body`. microbatches: of the same on one
    device."""

    body: str
    devices: int = 4
    batch: int = 8
    whole: Callable[[], Model] = DENSE2
    zero: str = ""
    rule: AdamW = RULE
    microbatches: int = 1

    @property
    def model(self) -> Model:
        return _small(self.whole)

    @property
    def job(self) -> TrainingJob:
        return TrainingJob(
            sequences=tuple(SequenceLength(name=n, tokens=TOKENS) for n in self.sequences),
            global_batch=self.batch,
        )

    @property
    def sequences(self) -> tuple[str, ...]:
        """Of token ids, the text first."""
        return tuple(dict.fromkeys(("text", *(block.sequence for block in self.model.blocks))))

    @property
    def plan(self) -> Plan:
        return parse_plan(f"plan small devices {self.devices}\n{self.zero}{self.body}")

    def known(self) -> PreparedTraining:
        return _known(self)

    def alone(self) -> PreparedTraining:
        """The same on one device."""
        return _alone(replace(self, body="", zero="", devices=1))

    def batches(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        tokens = {
            n: torch.randint(0, self.model.vocab, (self.batch, TOKENS + 1), generator=generator)
            for n in self.sequences
        }
        return {n: ids[:, :-1] for n, ids in tokens.items()} | {"labels": tokens["text"][:, 1:]}

    def members(self, known: PreparedTraining) -> dict[int, DeviceState]:
        return {
            d: create_device_state(d, known, source=seeded(self.model, seed=0))
            for d in known.devices
        }


@lru_cache(maxsize=64)
def _small(whole: Callable[[], Model]) -> Model:
    return narrower_model(whole())


@lru_cache(maxsize=64)
def _known(small: Small) -> PreparedTraining:
    return prepare_training(small.model, small.job, small.plan, rule=small.rule)


@lru_cache(maxsize=64)
def _alone(small: Small) -> PreparedTraining:
    return prepare_training(
        small.model,
        small.job,
        single_device_plan(small.model, small.job, microbatches=small.microbatches),
        rule=small.rule,
    )


def alone_reports(small: Small, *, steps: int) -> tuple[StepReport, ...]:
    """Of the steps on one device, which are the same whatever the plan is."""
    return _alone_reports(replace(small, body="", zero="", devices=1), steps)


@lru_cache(maxsize=64)
def _alone_reports(small: Small, steps: int) -> tuple[StepReport, ...]:
    return tuple(run_here(small, small.alone(), steps=steps)[0])


def run_here(
    small: Small, known: PreparedTraining, *, steps: int
) -> tuple[list[StepReport], dict[int, DeviceState]]:
    members = small.members(known)
    return train(members, known, (small.batches(step) for step in range(steps))), members


def _one(split: str, *, order: str = "1f1b", microbatches: int = 2, batch: int = 8) -> str:
    lines = "".join(f"    {line}\n" for line in split.split("; "))
    return (
        f"lane main samples {batch} in {microbatches}\n  stages embed+2+head on 0\n{lines}order"
        f" {order}(main)\n"
    )


def _pipeline(stages: str, *, order: str, microbatches: int = 4, split: str = "all = .") -> str:
    lines = "".join(f"    {line}\n" for line in split.split("; "))
    return f"lane main samples 8 in {microbatches}\n  stages {stages}\n{lines}order {order}(main)\n"


FOUR = "embed+1, 1*2, 1+head on 0..3"
TABLE = """lane main samples 4 in 4
  stages embed+1, 1+head on 0, 1
    all = .
order table(main)
  0: 0F0 0F1 0I0 0F2 0W0 0I1 0F3 0W1 0I2 0W2 0I3 0W3
  1: 1F0 1I0 1F1 1W0 1I1 1F2 1W1 1I2 1F3 1W2 1I3 1W3
"""
FOUND = """lane main samples 8 in 4
  stages embed+1, 1*2, 1+head on 0..3
    all = .
order table(main)
  0: 0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
  1: 1F0 1F1 1I0 1F2 1W0 1I1 1F3 1W1 1I2 1W2 1I3 1W3
  2: 2F0 2F1 2I0 2W0 2F2 2I1 2W1 2F3 2I2 2W2 2I3 2W3
  3: 3F0 3I0 3W0 3F1 3I1 3W1 3F2 3I2 3W2 3F3 3I3 3W3
"""
# What `search.orders.find_order` found for forward 4 2 3 5, input 4 3 2 5, weight 3 2 4 2, send 1,
# memory for three microbatches.
RECOMPUTED = """lane main samples 4 in 4
  stages embed+1, 1+head on 0, 1
    all = .
    recompute 0-: full
order table(main)
  0: 0F0 0F1 0R0 0I0 0F2 0W0 0R1 0I1 0F3 0W1 0R2 0I2 0W2 0R3 0I3 0W3
  1: 1F0 1R0 1I0 1F1 1W0 1R1 1I1 1F2 1W1 1R2 1I2 1F3 1W2 1R3 1I3 1W3
"""
TWO_LANES = """lane down samples 4 in 2
  stages embed, 1*2, head on 0..3
    all = .
lane up samples 4 in 2
  stages embed, 1*2, head on 3..0
    all = .
order table(down, up)
  0: down/0F0 down/0F1 up/3F0 up/3B0 up/3F1 up/3B1 down/0B0 down/0B1
  1: down/1F0 up/2F0 down/1F1 up/2F1 up/2B0 down/1B0 up/2B1 down/1B1
  2: up/1F0 down/2F0 up/1F1 down/2F1 down/2B0 up/1B0 down/2B1 up/1B1
  3: up/0F0 up/0F1 down/3F0 down/3B0 down/3F1 down/3B1 up/0B0 up/0B1
"""
MIXED = """lane main samples 8 in 4
  stages embed+1 on 0
    all = t2
    stream = s2
  stages 1+head on 2
    all = b2
order 1f1b(main)
"""
UNEQUAL_LANES = """lane fast samples 6 in 3
  stages embed+4+head on 0
    all = t2
    stream = s2
lane slow samples 2 in 2
  stages embed+3, 1+head on 2, 3
    all = .
order 1f1b(fast)
order 1f1b(slow)
"""
UNLIKE_KINDS = """lane both samples 6 in 3
  stages embed+3 on 0
    all = b2 t2
    stream = b2 s2
  stages 1+head on 4
    all = b2
lane slow samples 2 in 1
  stages embed+4+head on 6
    all = t2
    stream = s2
order 1f1b(both)
order 1f1b(slow)
"""
EXPERTS8 = (
    "lane main samples 8 in 1\n  stages embed+2+head on 0\n    all = b8\n    experts = b2 e4\norder"
    " 1f1b(main)\n"
)
EXPERTS = (
    "lane main samples 8 in 2\n  stages embed+2+head on 0\n    all = b4\n    experts = e4\norder"
    " 1f1b(main)\n"
)

OPPOSITE = """lane down samples {samples} in {samples}
  stages embed+1, 1*2, 1+head on 0..3
    all = .
lane up samples {samples} in {samples}
  stages embed+1, 1*2, 1+head on 3..0
    all = .
order {order}(down, up)
"""
MLA = """lane main samples 8 in 2
  stages embed+1 on 0
    all = t2
    stream = s2
  stages 1+head on 2
    all = b2
    experts = e2
order 1f1b(main)
"""
MAMBA = (
    "lane main samples 8 in 2\n  stages embed+1+head on 0\n    all = b2 t2\n    stream = b2"
    " x2\norder 1f1b(main)\n"
)
CROSS = """lane main samples 8 in 2
  stages encoder_embed+encoder:2+encoder_norm on 0
    all = b2
  stages embed+decoder:2+head on 2
    all = t2
    stream = s2
order 1f1b(main)
"""
GRID = """lane main samples 8 in 2
  stages embed+1, 1+head on 0, 4
    all = b2 t2
    stream = b2 s2
order 1f1b(main)
"""

TIED = """lane main samples 8 in 2
  stages embed+1, 1+head on 0, 2
    all = b2
order 1f1b(main)
"""

APART = """lane fast samples 12 in 3
  stages embed+2+head on 0
    all = {split}
lane slow samples 8 in 2
  stages {cut}
    all = {other}
order 1f1b(fast)
order 1f1b(slow)
"""
EVERYWHERE = "zero all: all/all/all gather=use reduce=microbatch lanes=fast,slow\n"
ONE_SHARDS = "zero all: all/1/1\nzero all: all/all/all gather=use reduce=microbatch lanes=fast\n"


def _apart(split: str, cut: str, other: str) -> str:
    """Two lanes of devices of their own, of unlike numbers of microbatches."""
    return APART.format(
        cut=cut,
        **{
            name: text.replace("; ", "\n    ")
            for name, text in (("split", split), ("other", other))
        },
    )


PLANS: dict[str, Small] = {
    "tp": Small(body=_one("all = t4; stream = x4")),
    "tp and sequence": Small(body=_one("all = b2 t2; stream = b2 s2")),
    "ring": Small(body=_one("all = s4z; core = s4z via ring")),
    "ulysses": Small(body=_one("all = s4; core = h4")),
    "usp": Small(body=_one("all = s2z s2; core = s2z h2 via ring")),
    "experts": Small(body=EXPERTS, whole=SPARSE, zero="zero all: all/1/1\n"),
    "1f1b": Small(body=_pipeline(FOUR, order="1f1b"), whole=DENSE4),
    "interleaved": Small(
        body=_pipeline(
            "embed+1, 1*2, 1+head on (0, 2)*2",
            order="interleaved-1f1b",
            split="all = t2; stream = s2",
        ),
        whole=DENSE4,
    ),
    "zb-v": Small(
        body=_pipeline("embed+1, 1*2, 1+head on 0..1, 1..0", order="zb-v"), devices=2, whole=DENSE4
    ),
    "order by hand": Small(body=TABLE, devices=2, batch=4),
    "found order": Small(body=FOUND, whole=DENSE4),
    "recomputed early": Small(body=RECOMPUTED, devices=2, batch=4),
    "zero-1": Small(body=_one("all = b4"), zero="zero all: all/1/1\n"),
    "adapters zero-3": Small(
        body=_one("all = b2 t2; stream = b2 s2"),
        whole=adapted,
        zero="zero all: all/all/all gather=use reduce=microbatch\n",
    ),
    "zero-2": Small(body=_one("all = b2 t2; stream = b2 s2"), zero="zero all: all/all/1\n"),
    "zero-3": Small(
        body=_one("all = b4"), zero="zero all: all/all/all gather=use reduce=microbatch\n"
    ),
    "hybrid zero-3": Small(body=_one("all = b4"), zero="zero all: 4/2/2\n"),
    "two lanes": Small(body=TWO_LANES, zero="zero all: all/1/1\n"),
    "unequal lanes": Small(body=UNEQUAL_LANES, whole=DENSE4, zero="zero all: all/all/1\n"),
    "unlike kinds": Small(body=UNLIKE_KINDS, devices=8, whole=DENSE4, zero="zero all: all/1/1\n"),
    "tp2 then dp2": Small(body=MIXED),
    "three devices": Small(
        body=_one("all = b[2:1]{t2, .+2}; stream = b[2:1]{s2, .+2}", batch=12, microbatches=4),
        devices=3,
        batch=12,
    ),
    "weighted batch": Small(
        body=_one("all = b[3:1]{., .+1}", microbatches=2), devices=2, zero="zero all: all/all/all\n"
    ),
    "unequal duplicates": Small(
        body=_one("all = b[2:1]{x2, .+2}", batch=12, microbatches=4),
        devices=3,
        batch=12,
        zero="zero all: all/all/all\n",
    ),
    "tied": Small(body=TIED, whole=tied, zero="zero all: all/all/1\n"),
    "hidden": Small(body=_one("all = x2; attn,mlp = d2"), devices=2),
    "one lane shards": Small(
        body=_apart("b2", "embed+2+head on 2", "t2; stream = s2"), batch=20, zero=ONE_SHARDS
    ),
    "lanes shard for themselves": Small(
        body=_apart("b4", "embed+2+head on 4", "b2 t2; stream = b2 s2"),
        devices=8,
        batch=20,
        zero=EVERYWHERE,
    ),
    "lanes of pairs shard for themselves": Small(
        body=_apart("b2", "embed+2+head on 2", "b2"), batch=20, zero=EVERYWHERE
    ),
    "a lane shards gradients": Small(
        body=_apart("b4", "embed+2+head on 4", "b2"),
        devices=6,
        batch=20,
        zero=(
            "zero all: all/1/1\nzero all: all/all/1 reduce=microbatch lanes=slow\nzero all: all/2/2"
            " lanes=fast\n"
        ),
    ),
    "hybrid lanes": Small(
        body=_apart("b4", "embed+2+head on 4", "b2"),
        devices=6,
        batch=20,
        zero="zero all: 3/2/2 gather=use lanes=fast,slow\n",
    ),
    "a lane shards beside a pipeline": Small(
        body=_apart("b2", "embed+1, 1+head on 2, 4", "b2"), devices=6, batch=20, zero=ONE_SHARDS
    ),
    "a lane shards tied weights": Small(
        body=_apart("b2", "embed+1, 1+head on 4, 6", "b2").replace(
            "embed+2+head on 0", "embed+1, 1+head on 0, 2"
        ),
        devices=8,
        batch=20,
        whole=tied,
        zero=ONE_SHARDS,
    ),
    "lanes of experts shard": Small(
        body=_apart("b4; experts = b2 e2", "embed+2+head on 4", "b2"),
        devices=6,
        batch=20,
        whole=SPARSE,
        zero=EVERYWHERE,
    ),
    "lanes hold experts once": Small(
        body=_apart("b4; experts = e4", "embed+2+head on 4", "b2; experts = e2"),
        devices=6,
        batch=20,
        whole=SPARSE,
        zero=EVERYWHERE,
    ),
    "lanes of one replica": Small(
        body=_apart("t2; stream = s2", "embed+1, 1+head on 2, 4", "t2; stream = s2"),
        devices=6,
        batch=20,
        zero=EVERYWHERE,
    ),
    "a lane of unequal duplicates shards": Small(
        body=_apart("b[2:1]{x2, .+2}", "embed+2+head on 3", "b2"),
        devices=5,
        batch=20,
        zero=EVERYWHERE,
    ),
    "chimera": Small(body=OPPOSITE.format(samples=4, order="chimera"), whole=DENSE4),
    "dualpipe": Small(body=OPPOSITE.format(samples=8, order="dualpipe"), batch=16, whole=DENSE4),
    "latent attention": Small(body=MLA, whole=LATENT),
    "mamba-2": Small(body=MAMBA, whole=MAMBA2),
    "encoder and decoder": Small(body=CROSS, whole=partial(encoder_decoder, layers=2)),
    "tp, pp and dp": Small(body=GRID, devices=8, zero="zero all: all/1/1\n"),
    "hybrid zero-3 of eight": Small(
        body=_one("all = b8", microbatches=1), devices=8, zero="zero all: 8/4/2\n"
    ),
    "experts in data": Small(body=EXPERTS8, devices=8, whole=SPARSE, zero="zero all: all/1/1\n"),
    "ring, tp and dp": Small(
        body=_one("all = b2 s2z t2; stream = b2 s2z s2; core = b2 s2z t2 via ring"), devices=8
    ),
    "eight stages": Small(
        body=_pipeline("embed+1, 1*6, 1+head on 0..7", order="1f1b", microbatches=8),
        devices=8,
        whole=partial(dense, layers=8),
    ),
    "interleaved in data": Small(
        body=_pipeline(
            "embed+1, 1*6, 1+head on (0, 2, 4, 6)*2", order="interleaved-1f1b", split="all = b2"
        ),
        devices=8,
        whole=partial(dense, layers=8),
    ),
    "vocabulary": Small(body=_one("all = b2 t2; stream = b2 s2; embed,head = v4")),
}
"""By name; of each the single process is `Small.alone`."""
