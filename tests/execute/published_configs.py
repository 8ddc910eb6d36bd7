"""Small configurations of families that Transformers alone is the reference of: it makes their
weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from shardwright.execute.training.open_image_arrays_and_cut_patches import has_grid
from shardwright.job.training_job import SequenceLength
from shardwright.model.ir.model_graph import Model
from tests.execute.image_batches import SQUARE, with_images
from tests.execute.published_images import GEMMA4, IMAGES, MINIMAX_M3_TEXT
from tests.execute.published_sizes import ALIKE, PLAIN, Config

WHOLE: Config = {**PLAIN, "num_key_value_heads": 4}
GPT: Config = {
    "n_embd": 32,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 32,
    "vocab_size": 19,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
GEMMA2: Config = {
    **PLAIN,
    "architectures": ["Gemma2ForCausalLM"],
    "sliding_window": 4,
    "query_pre_attn_scalar": 24,
}
FALCON: Config = {
    **{key: value for key, value in ALIKE.items() if key != "intermediate_size"},
    "architectures": ["FalconForCausalLM"],
    "ffn_hidden_size": 20,
    "new_decoder_architecture": False,
}
T5: Config = {
    "d_model": 32,
    "d_kv": 6,
    "num_heads": 4,
    "d_ff": 20,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
    "vocab_size": 19,
    "pad_token_id": 0,
    "eos_token_id": 0,
}
"""An encoder and a decoder; distances of short sequences are beyond those that have a bias each."""
PUBLISHED: dict[str, Config] = {
    "smollm3": {
        **PLAIN,
        "architectures": ["SmolLM3ForCausalLM"],
        "num_hidden_layers": 4,
        "tie_word_embeddings": True,
    },
    "smollm3 listed": {
        **PLAIN,
        "architectures": ["SmolLM3ForCausalLM"],
        "no_rope_layers": [0, 1],
        "attention_bias": True,
        "mlp_bias": True,
    },
    "seed oss": {
        **PLAIN,
        "architectures": ["SeedOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "residual_dropout": 0.0,
    },
    "arcee": {**PLAIN, "architectures": ["ArceeForCausalLM"], "mlp_bias": True},
    "helium": {**WHOLE, "architectures": ["HeliumForCausalLM"]},
    "ernie 4.5": {
        **PLAIN,
        "architectures": ["Ernie4_5ForCausalLM"],
        "use_bias": True,
        "tie_word_embeddings": False,
    },
    "granite": {
        **PLAIN,
        "architectures": ["GraniteForCausalLM"],
        "embedding_multiplier": 12.0,
        "logits_scaling": 8.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.3,
    },
    "stablelm": {**PLAIN, "architectures": ["StableLmForCausalLM"], "use_qkv_bias": True},
    "stablelm parallel": {
        **PLAIN,
        "architectures": ["StableLmForCausalLM"],
        "use_parallel_residual": True,
        "partial_rotary_factor": 0.5,
    },
    "phi": {**PLAIN, "architectures": ["PhiForCausalLM"]},
    "gpt-j": {**GPT, "architectures": ["GPTJForCausalLM"], "rotary_dim": 4},
    "cohere": {**PLAIN, "architectures": ["CohereForCausalLM"], "logit_scale": 0.25},
    "starcoder2": {**PLAIN, "architectures": ["Starcoder2ForCausalLM"], "sliding_window": 4},
    "gpt bigcode": {
        **GPT,
        "architectures": ["GPTBigCodeForCausalLM"],
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "gpt bigcode heads": {
        **GPT,
        "architectures": ["GPTBigCodeForCausalLM"],
        "multi_query": False,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "olmoe": {
        **PLAIN,
        "architectures": ["OlmoeForCausalLM"],
        "num_experts": 4,
        "num_experts_per_tok": 2,
    },
    "gpt-neox": {**ALIKE, "architectures": ["GPTNeoXForCausalLM"]},
    "gpt-neox sequential": {
        **ALIKE,
        "architectures": ["GPTNeoXForCausalLM"],
        "use_parallel_residual": False,
        "attention_bias": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 500.0,
            "partial_rotary_factor": 0.5,
        },
    },
    "opt": {
        **ALIKE,
        "architectures": ["OPTForCausalLM"],
        "ffn_dim": 20,
        "word_embed_proj_dim": 32,
        "dropout": 0.0,
    },
    "opt unbiased": {
        **ALIKE,
        "architectures": ["OPTForCausalLM"],
        "ffn_dim": 20,
        "word_embed_proj_dim": 32,
        "dropout": 0.0,
        "enable_bias": False,
        "activation_function": "gelu",
    },
    "falcon": {**FALCON, "multi_query": True},
    "falcon heads": {**FALCON, "multi_query": False, "bias": True},
    "falcon sequential": {**FALCON, "multi_query": False, "parallel_attn": False},
    "nemotron": {**PLAIN, "architectures": ["NemotronForCausalLM"]},
    "nemotron biased": {
        **PLAIN,
        "architectures": ["NemotronForCausalLM"],
        "attention_bias": True,
        "mlp_bias": True,
    },
    "glm": {**PLAIN, "architectures": ["GlmForCausalLM"]},
    "glm4": {**PLAIN, "architectures": ["Glm4ForCausalLM"]},
    "glm4 moe": {
        **PLAIN,
        "architectures": ["Glm4MoeForCausalLM"],
        "use_qk_norm": True,
        "attention_bias": True,
        "moe_intermediate_size": 12,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5,
        "num_nextn_predict_layers": 0,
    },
    "cohere2": {
        **PLAIN,
        "architectures": ["Cohere2ForCausalLM"],
        "num_hidden_layers": 4,
        "sliding_window": 4,
    },
    "olmo3": {
        **PLAIN,
        "architectures": ["Olmo3ForCausalLM"],
        "num_hidden_layers": 4,
        "sliding_window": 4,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 16,
        },
    },
    "exaone4": {
        **PLAIN,
        "architectures": ["Exaone4ForCausalLM"],
        "num_hidden_layers": 4,
        "sliding_window": 4,
    },
    "exaone4 whole": {
        **PLAIN,
        "architectures": ["Exaone4ForCausalLM"],
        "sliding_window": None,
        "layer_types": ["full_attention"] * 2,
    },
    "gemma3": {
        **PLAIN,
        "architectures": ["Gemma3ForCausalLM"],
        "sliding_window": 4,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 24,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "final_logit_softcapping": 3.0,
    },
    "llama4": {
        **PLAIN,
        "architectures": ["Llama4ForCausalLM"],
        "num_hidden_layers": 4,
        "head_dim": 8,
        "intermediate_size_mlp": 40,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "moe_layers": [1, 2],
        "no_rope_layers": [1, 0, 1, 0],
        "attention_chunk_size": 4,
        "floor_scale": 2,
        "attn_scale": 0.5,
        "use_qk_norm": True,
    },
    "llama4 of two experts": {
        **PLAIN,
        "architectures": ["Llama4ForCausalLM"],
        "head_dim": 8,
        "intermediate_size_mlp": 40,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "no_rope_layers": [1, 0],
        "attention_chunk_size": 4,
        "attn_temperature_tuning": False,
        "use_qk_norm": False,
    },
    "falcon-h1": {
        **PLAIN,
        "architectures": ["FalconH1ForCausalLM"],
        "mamba_d_ssm": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_n_groups": 2,
        "mamba_d_state": 6,
        "mamba_d_conv": 4,
        "mamba_chunk_size": 4,
        "embedding_multiplier": 5.0,
        "lm_head_multiplier": 0.5,
        "attention_in_multiplier": 0.8,
        "key_multiplier": 0.4,
        "attention_out_multiplier": 0.9,
        "ssm_in_multiplier": 1.25,
        "ssm_out_multiplier": 0.25,
        "ssm_multipliers": [0.35, 0.25, 0.18, 0.5, 0.3],
        "mlp_multipliers": [0.9, 0.2],
    },
    "gpt-oss": {
        **PLAIN,
        "architectures": ["GptOssForCausalLM"],
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "swiglu_limit": 1.0,
    },
    "nemotron-h": {
        **{key: value for key, value in PLAIN.items() if key != "num_hidden_layers"},
        "architectures": ["NemotronHForCausalLM"],
        "layers_block_type": ["linear_attention", "full_attention", "mlp", "moe"],
        "ssm_state_size": 6,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "n_groups": 2,
        "conv_kernel": 4,
        "chunk_size": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "moe_shared_expert_intermediate_size": 14,
        "routed_scaling_factor": 1.5,
    },
    "qwen3-next": {
        **PLAIN,
        "architectures": ["Qwen3NextForCausalLM"],
        "num_hidden_layers": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 14,
        "mlp_only_layers": [1],
        "full_attention_interval": 2,
    },
    "jamba": {
        **{key: value for key, value in PLAIN.items() if key != "head_dim"},
        "architectures": ["JambaForCausalLM"],
        "num_hidden_layers": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "mamba_d_state": 6,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": 5,
    },
    "t5": {**T5, "architectures": ["T5ForConditionalGeneration"]},
    "t5 v1.1": {
        **T5,
        "architectures": ["T5ForConditionalGeneration"],
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    },
    "mt5": {**T5, "architectures": ["MT5ForConditionalGeneration"]},
    "umt5": {**T5, "architectures": ["UMT5ForConditionalGeneration"]},
    "umt5 untied": {
        **T5,
        "architectures": ["UMT5ForConditionalGeneration"],
        "feed_forward_proj": "gelu",
        "tie_word_embeddings": False,
    },
    "minimax m3 alone": {
        **MINIMAX_M3_TEXT,
        "architectures": ["MiniMaxM3VLForCausalLM"],
        "num_hidden_layers": 3,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "index_n_heads": 2,
        "index_head_dim": 6,
        "index_block_size": 2,
        "index_topk_blocks": 2,
    },
    "gemma4": {
        **GEMMA4,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 12,
    },
    "gemma4 dense": {**GEMMA4, "final_logit_softcapping": None, "tie_word_embeddings": False},
    "gemma4 of usual turns": {
        **{
            key: value
            for key, value in GEMMA4.items()
            if key not in ("layer_types", "rope_parameters")
        },
        "attention_k_eq_v": False,
        "attention_bias": True,
        "use_bidirectional_attention": "vision",
    },
    **IMAGES,
    "gemma2": {**GEMMA2, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 5.0},
}


class _Double:
    """PyTorch, in which ``float32``, ``float`` too, has 64 bits."""

    def __getattr__(self, name: str) -> Any:
        return torch.float64 if name in ("float32", "float") else getattr(torch, name)


IN_SINGLE = {
    "Qwen3NextForCausalLM": "qwen3_next",
    "Kimi_K25ForConditionalGeneration": "kimi_k25",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe",
    **dict.fromkeys(("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"), "gemma4"),
    **dict.fromkeys(
        ("MiniMaxM3VLForCausalLM", "MiniMaxM3SparseForConditionalGeneration"), "minimax_m3_vl"
    ),
    **{f"{name.upper()}ForConditionalGeneration": name for name in ("t5", "mt5", "umt5")},
}
"""Modules of Transformers that compute some things in float32 always: recurrences of delta rules,
some norms, turns of towers."""


@contextmanager
def in_double(architecture: str) -> Iterator[None]:
    """Transformers computes in float64 what it computes in float32 always; not the rows of a T5's
    distances, which are whole numbers."""
    name = IN_SINGLE.get(architecture, "")
    if not name:
        yield
        return
    found = import_module(f"transformers.models.{name}.modeling_{name}")
    floats = torch.Tensor.float if name.endswith("t5") else torch.Tensor.double
    shared = import_module("transformers.vision_utils")
    with (
        patch.object(found, "torch", _Double()),
        patch.object(shared, "torch", _Double()),
        patch.object(torch.Tensor, "float", floats),
    ):
        yield


@contextmanager
def all_in_double(published: Any) -> Iterator[None]:
    """As `in_double`, of every module of a model: norms, turns and softmax too, which most classes
    compute in float32."""
    names = {type(part).__module__ for part in published.modules()}
    floats = (
        torch.Tensor.float if any(name.endswith("t5") for name in names) else torch.Tensor.double
    )
    with ExitStack() as patches:
        for name in sorted(names | {"transformers.vision_utils"}):
            if name.startswith("transformers.") and hasattr(module := import_module(name), "torch"):
                patches.enter_context(patch.object(module, "torch", _Double()))
        patches.enter_context(patch.object(torch.Tensor, "float", floats))
        yield


def made(config: Config) -> Any:
    """The model of Transformers with random weights, every one of which counts, in float64."""
    import transformers

    model_class = getattr(transformers, config["architectures"][0])
    # Transformers writes into the objects that it is given.
    rest = {key: deepcopy(value) for key, value in config.items() if key != "architectures"}
    model = model_class._from_config(
        model_class.config_class(**rest),
        dtype=torch.float64,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    if config.get("tie_word_embeddings") is False and hasattr(model, "shared"):
        # Its class ties all that it makes, whatever is written, and keeps apart what a file has
        # apart.
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
        model.all_tied_weights_keys.pop("lm_head.weight")
    randomise(model)
    return model.eval()


def publish(name: str, folder: Path) -> Any:
    """The model of a configuration; `folder` gets its files."""
    model = made(PUBLISHED[name])
    model.save_pretrained(folder)
    return model


def sequences_of(model: Model, *, tokens: int) -> tuple[SequenceLength, ...]:
    """A text of so many tokens, for an encoder two fewer, and whole images, which may be any
    squares where they have rows and columns."""
    tables = [
        p
        for b in model.blocks
        for o in b.operators
        if o.reads_features
        for p in o.parameters
        if p.name.endswith("positions")
    ]
    image = SQUARE**2 if has_grid(model) else sum(table.extents[0].size for table in tables)
    lengths = {"text": tokens, "encoder": tokens - 2, "image": image}
    return tuple(
        SequenceLength(name=name, tokens=lengths[name])
        for name in dict.fromkeys(("text", *(b.sequence for b in model.blocks)))
    )


def batch_of(published: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tokens and labels of (samples, tokens + 1); an encoder reads them backwards, but for the
    first three. Images are drawn."""
    if hasattr(published.config, "vision_config"):
        return with_images(published, ids)
    others = (
        {"encoder": ids.flip(1)[:, :-3]}
        if getattr(published.config, "is_encoder_decoder", False)
        else {}
    )
    return {"text": ids[:, :-1], "labels": ids[:, 1:], **others}


def without_use(published: Any, name: str) -> bool:
    """A parameter that no output reads: of a tower, what lies behind the layer whose features are
    taken."""
    feature = getattr(published.config, "vision_feature_layer", None)
    layers = published.config.vision_config.num_hidden_layers if feature is not None else 0
    behind = (
        range(feature if feature >= 0 else layers + 1 + feature, layers)
        if feature is not None
        else ()
    )
    return feature is not None and any(
        part in name for part in ("post_layernorm", *(f"encoder.layers.{i}." for i in behind))
    )


def logits_of(published: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """What Transformers' model makes of a batch."""
    if "encoder" in batch:
        return published(input_ids=batch["encoder"], decoder_input_ids=batch["text"]).logits
    if "grid" in batch:
        pixels, kinds = batch["pixels"].to(published.dtype), {}
        if hasattr(published.config.vision_config, "deepstack_visual_indexes"):
            kinds["mm_token_type_ids"] = (batch["text"] == published.config.image_token_id).int()
        return published(
            input_ids=batch["text"], pixel_values=pixels, image_grid_thw=batch["grid"], **kinds
        ).logits
    if "where" in batch:
        kinds = (batch["text"] == published.config.image_token_id).int()
        pixels = batch["pixels"].to(published.dtype)
        return published(
            input_ids=batch["text"],
            pixel_values=pixels,
            image_position_ids=batch["where"],
            mm_token_type_ids=kinds,
        ).logits
    if "pixels" in batch:
        return published(
            input_ids=batch["text"], pixel_values=batch["pixels"].to(published.dtype)
        ).logits
    return published(input_ids=batch["text"]).logits


def randomise(model: Any) -> None:
    """Weights of which every one counts."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for tensor, parameter in (*model.named_parameters(), *_choices(model)):
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if "A_log" in tensor:
                drawn = drawn.abs()
            elif parameter.dim() > 1:
                drawn = (
                    drawn
                    if "embed" in tensor
                    or "shared" in tensor
                    or "relative" in tensor
                    or "wte" in tensor
                    or "wpe" in tensor
                    else drawn * parameter.shape[-1] ** -0.5
                )
            else:
                drawn = 0.1 * drawn + (1.0 if tensor.endswith("weight") else 0.0)
            parameter.copy_(drawn)


STORED = ("e_score_correction_bias", "layer_scalar", "std_bias", "std_scale")


def _choices(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Corrections of the choice of experts, numbers of layers and of a tower's features, which are
    no parameters there."""
    return [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(STORED)]
