"""Ranks of torch.distributed that are started once and train grids on PyTorch's own engine; what
they find is written to files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import islice, product
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist

from shardwright.errors import StrategyError
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.interpreter.step_recorder import gather_trace
from shardwright.execute.launch.run_options_and_report import NATIVE, OWN
from shardwright.execute.launch.train_rank_by_interpreter import run_rank
from shardwright.execute.native.checkpoints_in_interpreter_format import newest_checkpoint_of
from shardwright.execute.native.evaluation import evaluate
from shardwright.execute.native.rank_stages_optimizer_and_pipeline import NativeEngine
from shardwright.execute.native.step_events import native_recorder
from shardwright.execute.native.train_grid import train_native
from shardwright.execute.training.adamw_optimizer import AdamW
from shardwright.execute.training.device_training_state import prepare_training
from shardwright.execute.training.training_loop import StepReport
from shardwright.execute.training.weight_decay_exemptions import EMBEDDINGS, VECTORS
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.model_graph import Model
from shardwright.program.step_trace import StepTrace
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.plan.pipeline_order import Table
from shardwright.strategy.text.grid_notation import print_grid
from tests.execute.native_grids import drawn_grids
from tests.execute.small_models import small_model
from tests.execute.small_plans import DENSE2, DENSE4, PLANS, RULE, SPARSE, Small, tied
from tests.execute.started import started
from tests.tiers import in_proof, many, random_of

SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 64,
    "max_position_embeddings": 16,
}


def normed_heads(layers: int = 2) -> Model:
    """Norms of query and key heads, biases of the projections: their gradients are parts on every
    rank of tp. A row of padding."""
    config = {
        "pad_token_id": 40,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "attention_bias": True,
    }
    return model_from_config(
        {
            **SIZES,
            **config,
            "architectures": ["Qwen3ForCausalLM"],
            "num_hidden_layers": layers,
            "rms_norm_eps": 1e-5,
        },
        name="normed",
    )


def learned_positions() -> Model:
    """LayerNorm, a table of positions and biases everywhere, tied."""
    sizes = {
        "n_embd": 64,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 16,
        "vocab_size": 64,
        "layer_norm_epsilon": 1e-5,
    }
    return model_from_config(
        {**sizes, "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new"},
        name="positions",
    )


def stored_factors() -> Model:
    """Layers with a factor that nobody trains, norms of values, and in some keys that are
    values."""
    heads = {
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 24,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
    }
    layers = {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 4,
        "hidden_size_per_layer_input": 0,
    }
    config = {
        **SIZES,
        **heads,
        **layers,
        "intermediate_size": 128,
        "architectures": ["Gemma4ForCausalLM"],
        "rms_norm_eps": 1e-6,
    }
    return model_from_config(config, name="factors")


def latent() -> Model:
    """Latent attention, and experts in groups behind a dense layer."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "vocab_size": 64,
        "num_hidden_layers": 2,
    }
    heads = {
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 10,
    }
    experts = {
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    }
    routing = {
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "num_nextn_predict_layers": 0,
    }
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        **sizes,
        **heads,
        **experts,
        **routing,
        "rms_norm_eps": 1e-6,
    }
    return model_from_config({**config, "max_position_embeddings": 64}, name="latent")


def shared_gate() -> Model:
    """Experts beside a shared one, which counts as much as a score of the token says."""
    experts = {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
    }
    config = {
        **SIZES,
        **experts,
        "intermediate_size": 128,
        "num_key_value_heads": 2,
        "norm_topk_prob": True,
        "rms_norm_eps": 1e-6,
    }
    return model_from_config({**config, "architectures": ["Qwen2MoeForCausalLM"]}, name="gate")


def balanced() -> Model:
    """Experts whose load a loss over all layers balances."""
    experts = {
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "output_router_logits": True,
        "router_aux_loss_coef": 0.5,
    }
    config = {
        **SIZES,
        **experts,
        "intermediate_size": 64,
        "num_key_value_heads": 2,
        "architectures": ["MixtralForCausalLM"],
    }
    return model_from_config(config, name="balanced")


def turned() -> Model:
    """A share of each head is turned, every pair slower by a factor of its own."""
    longer = {
        "type": "longrope",
        "short_factor": [1.0, 1.5, 2.0, 4.0],
        "long_factor": [2.0, 3.0, 4.0, 8.0],
    }
    config = {
        "intermediate_size": 128,
        "partial_rotary_factor": 0.5,
        "rope_scaling": longer,
        "original_max_position_embeddings": 4,
    }
    return model_from_config(
        {**SIZES, **config, "architectures": ["Phi3ForCausalLM"]}, name="turned"
    )


FACTORS = {
    "embedding_multiplier": 12.0,
    "logits_scaling": 8.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.3,
}


def factored() -> Model:
    """Factors of the embedding, of scores, of what joins the stream, and of logits."""
    config = {
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "architectures": ["GraniteForCausalLM"],
    }
    return model_from_config({**SIZES, **config, **FACTORS}, name="factored")


def bounded() -> Model:
    """Logits within bounds; layers with a window turn at rates of their own."""
    config = {
        "num_key_value_heads": 4,
        "head_dim": 16,
        "intermediate_size": 128,
        "sliding_window": 4,
        "query_pre_attn_scalar": 24,
    }
    more = {
        "sliding_window_pattern": 2,
        "final_logit_softcapping": 3.0,
        "architectures": ["Gemma3ForCausalLM"],
    }
    return model_from_config({**SIZES, **config, **more}, name="bounded")


def together() -> Model:
    """Both sub-blocks read one norm, which takes the mean away without a bias; tied."""
    config = {
        "num_key_value_heads": 4,
        "intermediate_size": 128,
        "logit_scale": 0.25,
        "architectures": ["CohereForCausalLM"],
    }
    return model_from_config({**SIZES, **config}, name="together")


def behind_two() -> Model:
    """Positions begin at the third row of their table."""
    config = {"ffn_dim": 128, "architectures": ["OPTForCausalLM"]}
    return model_from_config({**SIZES, **config}, name="behind")


def partly() -> Model:
    """The embedding and attention are frozen."""
    return trained(DENSE2(), "frozen:embed,attn")


SPARING = replace(RULE, decay=0.9, no_decay=(VECTORS, EMBEDDINGS))
RANKS = 4
STEPS = many(2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A grid of four devices and the model that it trains; `microbatches`: of the single process,
    where the loss is of microbatches."""

    grid: Grid
    whole: Callable[[], Model] = DENSE2
    order: Table | None = None
    compute: torch.dtype | None = None
    rule: AdamW = RULE
    microbatches: int = 1

    @property
    def small(self) -> Small:
        return Small(body="", whole=self.whole, rule=self.rule, microbatches=self.microbatches)


_PIPELINE = partial(Grid, pp=4, microbatch=2)
_SPREAD = partial(Grid, dp=4)
_KEYS = partial(Grid, gather=True)
_LLAMA4 = partial(small_model, "llama-4-maverick-text")
_TWO_CHUNKS = partial(Grid, pp=2, vpp=2)

(_FOUND,) = PLANS["found order"].plan.orders
assert isinstance(_FOUND, Table)

CASES: dict[str, Case] = {
    "tp4": Case(grid=Grid(tp=4, microbatch=8)),
    "tp4, turned in part": Case(grid=Grid(tp=4, microbatch=8), whole=turned),
    "tp4 and sequence": Case(grid=Grid(tp=4, sp=True, microbatch=4)),
    "dp4": Case(grid=Grid(dp=4)),
    "zero-1": Case(grid=Grid(dp=4, zero=1)),
    "zero-2": Case(grid=Grid(dp=4, zero=2)),
    "zero-3": Case(grid=Grid(dp=4, zero=3)),
    "hybrid zero-3": Case(grid=Grid(dp=4, zero=3, shard=2)),
    "tp2, sequence and zero-3": Case(
        grid=Grid(tp=2, sp=True, dp=2, zero=3, microbatch=2, recompute=Recompute.FULL)
    ),
    "tp2 outside zero-3": Case(
        grid=Grid(tp=2, dp=2, zero=3, microbatch=4, order=("dp", "tp", "cp", "ep", "pp"))
    ),
    "1f1b": Case(grid=_PIPELINE(), whole=DENSE4),
    "gpipe": Case(grid=_PIPELINE(schedule="gpipe", recompute=Recompute.SELECTIVE), whole=DENSE4),
    "zb-h1": Case(grid=_PIPELINE(schedule="zb-h1", recompute=Recompute.FULL), whole=DENSE4),
    "found order": Case(grid=_PIPELINE(), whole=DENSE4, order=_FOUND),
    "zero-3 under 1f1b": Case(grid=Grid(pp=2, dp=2, zero=3, recompute=Recompute.FULL)),
    "dp2 around 1f1b": Case(grid=Grid(pp=2, dp=2, order=("pp", "tp", "cp", "ep", "dp"))),
    "interleaved": Case(
        grid=_TWO_CHUNKS(tp=2, microbatch=2, schedule="interleaved-1f1b"), whole=DENSE4
    ),
    "zb-v": Case(grid=_TWO_CHUNKS(dp=2, zero=3, schedule="zb-v"), whole=DENSE4),
    "tp2 under zb-v": Case(
        grid=_TWO_CHUNKS(tp=2, sp=True, microbatch=2, schedule="zb-v"), whole=DENSE4
    ),
    "dualpipe-v": Case(grid=_TWO_CHUNKS(dp=2, schedule="dualpipe-v"), whole=DENSE4),
    "half precision": Case(grid=Grid(tp=2, pp=2, microbatch=4), compute=torch.bfloat16),
    "normed heads, tp2 under 1f1b": Case(
        grid=Grid(tp=2, sp=True, pp=2, microbatch=4), whole=normed_heads
    ),
    "normed heads, tp2, interleaved": Case(
        grid=_TWO_CHUNKS(tp=2, sp=True, microbatch=4, schedule="interleaved-1f1b"),
        whole=partial(normed_heads, layers=4),
    ),
    "learned positions, tied, under tp": Case(
        grid=Grid(tp=4, sp=True, microbatch=8), whole=learned_positions
    ),
    "experts under zero-3": Case(grid=Grid(dp=4, zero=3), whole=SPARSE),
    "balanced experts under zero-3": Case(
        grid=Grid(dp=4, zero=3, recompute=Recompute.FULL), whole=balanced, microbatches=2
    ),
    "balanced experts, tp2 and sequence": Case(
        grid=Grid(tp=2, sp=True, dp=2, ep=4, microbatch=2), whole=balanced, microbatches=2
    ),
    "balanced experts, tp2 and cp2": Case(
        grid=Grid(tp=2, cp=2, ulysses=2, microbatch=8), whole=balanced
    ),
    "experts under zb-h1": Case(grid=Grid(pp=2, dp=2, schedule="zb-h1"), whole=SPARSE),
    "spared under zero-3": Case(grid=Grid(dp=4, zero=3), whole=learned_positions, rule=SPARING),
    "tied": Case(grid=Grid(dp=4, zero=3), whole=tied),
    "latent attention, zero-3 under 1f1b": Case(grid=Grid(pp=2, dp=2, zero=3), whole=latent),
    "tied under 1f1b": Case(grid=Grid(pp=2, dp=2, zero=3), whole=tied),
    "tied, tp2 under gpipe": Case(
        grid=Grid(tp=2, sp=True, pp=2, microbatch=4, schedule="gpipe"), whole=tied
    ),
    "tied under zb-v": Case(grid=_TWO_CHUNKS(dp=2, schedule="zb-v"), whole=partial(tied, layers=4)),
    "factors, tp2 under 1f1b": Case(grid=Grid(tp=2, sp=True, pp=2, microbatch=4), whole=factored),
    "factors under zero-3": Case(grid=Grid(dp=4, zero=3), whole=factored),
    "bounded logits under tp4": Case(grid=Grid(tp=4, microbatch=8), whole=bounded),
    "bounded logits under zero-2": Case(grid=Grid(dp=4, zero=2), whole=bounded),
    "one norm for both under tp4 and sequence": Case(
        grid=Grid(tp=4, sp=True, microbatch=4), whole=together
    ),
    "one norm for both under zero-1": Case(grid=Grid(dp=4, zero=1), whole=together),
    "positions from the third row under tp2 and zero-3": Case(
        grid=Grid(tp=2, dp=2, zero=3, microbatch=2), whole=behind_two
    ),
    "zero-1 beside tp2": Case(grid=Grid(tp=2, sp=True, dp=2, zero=1, microbatch=4)),
    "zero-2 beside tp2": Case(grid=Grid(tp=2, dp=2, zero=2, microbatch=2)),
    "gpipe beside tp2": Case(grid=Grid(tp=2, pp=2, microbatch=4, schedule="gpipe")),
    "zb-h1 beside tp2": Case(
        grid=Grid(tp=2, sp=True, pp=2, microbatch=2, schedule="zb-h1"), whole=DENSE4
    ),
    "interleaved beside dp2": Case(
        grid=_TWO_CHUNKS(dp=2, microbatch=2, schedule="interleaved-1f1b"), whole=DENSE4
    ),
    "dualpipe-v beside tp2": Case(grid=_TWO_CHUNKS(tp=2, schedule="dualpipe-v"), whole=DENSE4),
    "factors of layers, tp2 and zero-3": Case(
        grid=Grid(tp=2, sp=True, dp=2, zero=3, microbatch=2), whole=stored_factors
    ),
    "factors of layers, tp2 under 1f1b": Case(
        grid=Grid(tp=2, pp=2, microbatch=4), whole=stored_factors
    ),
    "frozen under zero-3": Case(grid=Grid(dp=4, zero=3), whole=partly),
}
"""By name; of each the single process is `Small.alone`."""
DIVIDED: dict[str, Case] = {
    "experts on ep2 under zero-3": Case(grid=_SPREAD(ep=2, zero=3), whole=SPARSE),
    "experts on ep4": Case(grid=_SPREAD(ep=4), whole=SPARSE),
    "experts on ep2 under zero-1": Case(grid=_SPREAD(ep=2, zero=1), whole=SPARSE),
    "experts on ep2 under zero-2": Case(grid=_SPREAD(ep=2, zero=2), whole=SPARSE),
    "experts on ep2 under hybrid zero-3": Case(
        grid=_SPREAD(ep=2, zero=3, shard=2, recompute=Recompute.FULL), whole=SPARSE
    ),
    "experts on ep2 outside of what copies them": Case(
        grid=_SPREAD(
            ep=2, zero=3, order=("tp", "cp", "dp", "ep", "pp"), recompute=Recompute.SELECTIVE
        ),
        whole=latent,
    ),
    "experts on ep2 under 1f1b": Case(grid=Grid(pp=2, dp=2, ep=2, zero=3), whole=SPARSE),
    "experts on ep2 under zb-h1": Case(grid=Grid(pp=2, dp=2, ep=2, schedule="zb-h1"), whole=latent),
    "experts whole beside tp2": Case(
        grid=Grid(tp=2, sp=True, dp=2, microbatch=2, zero=2), whole=SPARSE
    ),
    "experts on ep4 over tp2": Case(
        grid=Grid(tp=2, sp=True, dp=2, ep=4, microbatch=2, zero=1), whole=SPARSE
    ),
    "experts on ep2 over tp2 under 1f1b": Case(
        grid=Grid(tp=2, sp=True, pp=2, ep=2, microbatch=2), whole=SPARSE
    ),
    "parts of experts on etp2": Case(
        grid=_SPREAD(etp=2, zero=3, order=("dp", "tp", "cp", "ep", "pp")), whole=SPARSE
    ),
    "parts of experts on etp2 and ep2": Case(grid=_SPREAD(etp=2, ep=2), whole=SPARSE),
    "parts of experts on etp2 and ep2 beside tp2": Case(
        grid=Grid(tp=2, sp=True, dp=2, etp=2, ep=2, zero=2, microbatch=2), whole=shared_gate
    ),
    "parts of experts on etp2 under 1f1b": Case(
        grid=Grid(tp=2, sp=True, etp=2, pp=2, microbatch=2), whole=SPARSE
    ),
    "parts of experts on tp2": Case(grid=Grid(tp=2, dp=2, zero=3, microbatch=2), whole=shared_gate),
    "parts of experts on tp2 under zb-h1": Case(
        grid=Grid(tp=2, pp=2, microbatch=2, schedule="zb-h1"), whole=SPARSE
    ),
    "latent attention beside tp2": Case(grid=Grid(tp=2, dp=2, zero=2, microbatch=2), whole=latent),
    "latent attention beside tp2, sequence and ep4": Case(
        grid=Grid(tp=2, sp=True, dp=2, ep=4, zero=3, microbatch=2), whole=latent
    ),
    "latent attention beside tp2 under zb-h1": Case(
        grid=Grid(tp=2, sp=True, pp=2, microbatch=2, schedule="zb-h1"), whole=latent
    ),
    "experts of weighed tokens on ep2": Case(grid=_SPREAD(ep=2, zero=3), whole=_LLAMA4),
    "keys gathered beside heads traded, in windows": Case(
        grid=_KEYS(cp=4, ulysses=2, microbatch=8), whole=bounded
    ),
    "keys gathered over cp4": Case(grid=_KEYS(cp=4, microbatch=8)),
    "keys gathered over cp4 under zero-3": Case(
        grid=_KEYS(cp=4, microbatch=4, zero=3, recompute=Recompute.FULL)
    ),
    "keys gathered over cp2 under zero-1": Case(
        grid=_KEYS(cp=2, dp=2, zero=1, microbatch=2), whole=learned_positions
    ),
    "keys gathered over cp2 outside zero-2": Case(
        grid=_KEYS(cp=2, dp=2, zero=2, microbatch=2, order=("dp", "cp", "tp", "ep", "pp")),
        whole=turned,
    ),
    "keys gathered over cp2 beside tp2": Case(
        grid=_KEYS(cp=2, tp=2, sp=True, microbatch=2), whole=normed_heads
    ),
    "keys gathered over cp2 around tp2 and zero-3": Case(
        grid=_KEYS(cp=2, tp=2, zero=3, microbatch=2, order=("cp", "tp", "ep", "dp", "pp")),
        whole=tied,
    ),
    "keys gathered over cp2 under 1f1b": Case(grid=_KEYS(cp=2, pp=2, zero=3), whole=tied),
    "keys gathered over cp2 under zb-v": Case(
        grid=_TWO_CHUNKS(cp=2, gather=True, schedule="zb-v"), whole=DENSE4
    ),
    "latent keys gathered over cp2": Case(
        grid=_KEYS(cp=2, dp=2, zero=3, microbatch=2, recompute=Recompute.SELECTIVE), whole=latent
    ),
    "keys passed round over cp4": Case(grid=Grid(cp=4, microbatch=8)),
    "keys passed round over cp4 under zero-3": Case(
        grid=Grid(cp=4, microbatch=4, zero=3, recompute=Recompute.FULL)
    ),
    "keys passed round over cp2 outside zero-2": Case(
        grid=Grid(cp=2, dp=2, zero=2, microbatch=2, order=("dp", "cp", "tp", "ep", "pp")),
        whole=turned,
    ),
    "keys passed round over cp2 beside tp2": Case(
        grid=Grid(cp=2, tp=2, sp=True, microbatch=2), whole=normed_heads
    ),
    "keys passed round over cp2 around tp2 and zero-3": Case(
        grid=Grid(cp=2, tp=2, zero=3, microbatch=2, order=("cp", "tp", "ep", "dp", "pp")),
        whole=tied,
    ),
    "keys passed round over cp2 under 1f1b": Case(
        grid=Grid(cp=2, pp=2, zero=3, recompute=Recompute.SELECTIVE), whole=tied
    ),
    "keys passed round over cp2 under zb-v": Case(
        grid=_TWO_CHUNKS(cp=2, schedule="zb-v"), whole=DENSE4
    ),
    "keys passed round beside heads traded, in windows": Case(
        grid=Grid(cp=4, ulysses=2, microbatch=8), whole=bounded
    ),
    "keys passed round beside heads traded, of two keys": Case(
        grid=Grid(cp=4, ulysses=2, microbatch=4, zero=1), whole=normed_heads
    ),
    "keys of longer queries passed round, and experts on ep2": Case(
        grid=Grid(cp=2, dp=2, ep=2, zero=3), whole=_LLAMA4
    ),
    "latent keys passed round over cp2": Case(
        grid=Grid(cp=2, dp=2, zero=3, microbatch=2, recompute=Recompute.SELECTIVE), whole=latent
    ),
    "latent keys passed round over cp2 under zb-h1": Case(
        grid=Grid(cp=2, ep=2, pp=2, zero=1, schedule="zb-h1"), whole=latent
    ),
    "heads traded over cp4, of two keys": Case(
        grid=Grid(cp=4, ulysses=4, microbatch=8, zero=1), whole=normed_heads
    ),
    "heads traded over cp2 under 1f1b": Case(
        grid=Grid(cp=2, ulysses=2, pp=2, zero=3, microbatch=2), whole=latent
    ),
    "heads traded over cp2 beside tp2": Case(
        grid=Grid(cp=2, ulysses=2, tp=2, sp=True, microbatch=2), whole=factored
    ),
    "experts on ep4 over cp2": Case(
        grid=_KEYS(cp=2, dp=2, ep=4, zero=3, microbatch=2), whole=SPARSE
    ),
    "experts on ep2 in cp4": Case(grid=_KEYS(cp=4, ep=2, zero=3, microbatch=4), whole=SPARSE),
    "experts on ep2 over cp2 under zb-h1": Case(
        grid=_KEYS(cp=2, ep=2, pp=2, zero=1, schedule="zb-h1"), whole=SPARSE
    ),
    "experts on ep2 beside tp2 and cp2": Case(
        grid=_KEYS(cp=2, tp=2, sp=True, ep=2, zero=3, microbatch=2), whole=SPARSE
    ),
}
"""Grids that divide experts, positions or latent attention; in proofs some that are drawn, too."""
for _name, _whole in (
    {"sparse": SPARSE, "gate": shared_gate, "latent": latent, "dense": DENSE4}.items()
    if in_proof()
    else ()
):
    _small = Case(grid=Grid(), whole=_whole).small
    _grids = drawn_grids(
        random_of(f"native {_name}"), model=_small.model, job=_small.job, ranks=RANKS
    )
    DIVIDED |= {
        f"{_name}: {print_grid(grid)}": Case(grid=grid, whole=_whole) for grid in islice(_grids, 4)
    }
CASES |= DIVIDED
COVERED = {
    "tp4",
    "tp4, turned in part",
    "tp4 and sequence",
    "interleaved",
    "normed heads, tp2 under 1f1b",
    "gpipe",
    "learned positions, tied, under tp",
    "experts under zero-3",
    "dp4",
    "zero-1",
    "zero-2",
    "zero-3",
    "tp2 outside zero-3",
    "1f1b",
    "zb-h1",
    "zero-3 under 1f1b",
    "dp2 around 1f1b",
    "tp2 under zb-v",
    "dualpipe-v",
    "experts under zb-h1",
    "tied",
    "factors under zero-3",
    "bounded logits under tp4",
    "one norm for both under tp4 and sequence",
    "bounded logits under zero-2",
    "one norm for both under zero-1",
    "factors of layers, tp2 under 1f1b",
    "zero-1 beside tp2",
    "zero-2 beside tp2",
    "gpipe beside tp2",
    "zb-h1 beside tp2",
    "interleaved beside dp2",
    "dualpipe-v beside tp2",
    "tied, tp2 under gpipe",
    "tied under zb-v",
    "hybrid zero-3",
    "factors, tp2 under 1f1b",
    "positions from the third row under tp2 and zero-3",
    "balanced experts, tp2 and cp2",
    "balanced experts, tp2 and sequence",
    "factors of layers, tp2 and zero-3",
    "tied under 1f1b",
}
"""Whose parts other grids have too: proofs alone train them."""
COVERED |= set(DIVIDED) - {
    "experts on ep2 under zero-3",
    "keys gathered beside heads traded, in windows",
    "keys passed round over cp2 under 1f1b",
}
TRAINED = (
    CASES if in_proof() else {name: case for name, case in CASES.items() if name not in COVERED}
)


WATCHED = (
    set(TRAINED)
    if in_proof()
    else {
        "tp2, sequence and zero-3",
        "zb-v",
        "experts on ep2 under zero-3",
        "keys passed round over cp2 under 1f1b",
    }
)
"""Grids that are evaluated behind every step, and traced."""
UNLEARNT = (100, 101)
"""Batches that are evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a rank found of the grids, by name: steps; elements that it trains; losses of what is
    evaluated; the last step's trace."""

    trained: dict[str, list[StepReport]] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    evaluated: dict[str, list[float]] = field(default_factory=dict)
    traces: dict[str, StepTrace] = field(default_factory=dict)


def train_all() -> Found:
    """Every grid."""
    found = Found()
    for name, case in TRAINED.items():
        small, watched = case.small, name in WATCHED

        def begun(engine: NativeEngine, name: str = name) -> None:
            found.held[name] = sum(piece.numel() for piece in engine.pieces)

        def after(
            engine: NativeEngine, one: StepReport, name: str = name, small: Small = small
        ) -> None:
            found.evaluated.setdefault(name, []).append(
                evaluate(engine, map(small.batches, UNLEARNT))
            )

        recorder = native_recorder(torch.device("cpu")) if watched else None
        source = seeded(small.model, seed=0)
        run = train_native(
            small.model,
            small.job,
            case.grid,
            source=source,
            batches=small.batches,
            steps=STEPS,
            rule=case.rule,
            dtype=torch.float64,
            order=case.order,
            compute=case.compute,
            begun=begun,
            after=after if watched else None,
            recorder=recorder,
        )
        found.trained[name] = list(run)
        if recorder is not None:
            found.traces[name] = gather_trace(recorder.trace(plan=name))
    return found


def refused() -> dict[str, str]:
    """What is said of grids that cannot run."""
    found, small = {}, Small(body="")
    for name, grid in {
        "world": Grid(dp=2),
        "offload": Grid(dp=4, zero=1, offload=50),
        "legal": Grid(dp=4, zero=3, shard=3),
    }.items():
        try:
            list(
                train_native(
                    small.model,
                    small.job,
                    grid,
                    source=seeded(small.model, seed=0),
                    batches=small.batches,
                    steps=1,
                )
            )
        except StrategyError as error:
            found[name] = str(error)
    return found


ALL_KEPT = {
    "tp2, sequence and zero-3": "hybrid zero-3",
    "hybrid zero-3": "tp2, sequence and zero-3",
    "zb-v": "1f1b",
    "learned positions, tied, under tp": "spared under zero-3",
    "experts under zero-3": "experts under zb-h1",
    "interleaved": "zb-h1",
    "tied under 1f1b": "tied",
    "experts on ep2 under zero-3": "experts on ep4 over cp2",
    "experts on ep2 beside tp2 and cp2": "parts of experts on etp2 under 1f1b",
    "parts of experts on etp2 and ep2": "experts on ep2 under 1f1b",
    "keys gathered over cp4 under zero-3": "tp4",
    "keys gathered over cp2 under 1f1b": "tied",
    "keys passed round over cp4 under zero-3": "keys gathered over cp4",
}
"""Grids of PyTorch's engine, and of the interpreter: one does a step or two, the other goes on from
its checkpoint."""
KEPT = (
    tuple(product(ALL_KEPT, (NATIVE, OWN)))
    if in_proof()
    else (("tp2, sequence and zero-3", NATIVE), ("experts on ep2 under zero-3", OWN))
)
"""Which of the two begins."""
FIRST, LAST = many(1, 2), many(2, 3)


def crossed(folder: Path, rank: int) -> dict[tuple[str, str], list[StepReport]]:
    """Steps of both engines, each of which goes on from what the other saved."""
    found: dict[tuple[str, str], list[StepReport]] = {}
    for number, (name, begins) in enumerate(KEPT):
        own, other = CASES[name], CASES[ALL_KEPT[name]]
        source = seeded(own.small.model, seed=0)
        root = folder / f"{number}-{begins}"
        steps: list[StepReport] = []
        for engine, until in ((begins, FIRST), (OWN if begins == NATIVE else NATIVE, LAST)):
            # Of another grid of the same model, where there is one.
            case = other if engine == OWN and other.whole is own.whole else own
            plan = plan_of(
                case.grid, model=own.small.model, global_batch=own.small.job.global_batch
            )
            known = prepare_training(own.small.model, own.small.job, plan, rule=own.rule)
            if engine == OWN:
                steps += run_rank(
                    known,
                    source=source,
                    batches=own.small.batches,
                    steps=until,
                    checkpoints=root,
                )
            else:
                saving = newest_checkpoint_of(known, root, steps=until, every=0, keep=0)
                steps += train_native(
                    own.small.model,
                    own.small.job,
                    case.grid,
                    source=saving.source(source),
                    batches=own.small.batches,
                    steps=until,
                    rule=own.rule,
                    dtype=torch.float64,
                    begun=saving.restore_optimizer,
                    after=saving.save_if_due,
                )
        found[name, begins] = steps
    return found


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=240),
    )
    own = train_all()
    found = {name: getattr(own, name) for name in own.__slots__} | {
        "refused": refused(),
        "crossed": crossed(Path(folder), rank),
    }
    torch.save(found, Path(folder) / f"rank{rank}")
    dist.destroy_process_group()


def start(folder: Path) -> list[BaseProcess]:
    """Ranks as processes."""
    return started(_work, ranks=RANKS, arguments=(str(folder),))
