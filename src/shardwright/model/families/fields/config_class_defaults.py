"""Defaults of the families' configuration classes, and the fields that each class reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Final

from shardwright.lazily_compiled_dataclass import dataclass

BY_LAYER: Final = "rotary positions that differ by type of layer"
PROPORTIONAL: Final = "proportional"
"""Kind of rotary positions of `ProportionalRotary`."""
FACTORS: Final = (
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "logit_scale",
    "lm_head_multiplier",
)
"""Names of factor fields, which a class may read or ignore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSettings:
    """Defaults of a family's configuration class for fields that a configuration lacks.

    Args:
        eps: epsilon of norms.
        rope_base: base of rotary positions; 0: the family has none.
        rope_share: the class reads the share of a head with rotary positions.
        usual_share: default of that share.
        turned: default number of rotary elements in ``rotary_dim``; 0: the class reads a share.
        local_base: default base of layers with a window, which are not extended; None: all layers
            have one base.
        rope: default rotary fields.
        kinds: further kinds of rotary positions that the class supports.
        axes: pairs of a head that turn by time, row and column of a text with images, where
            ``mrope_section`` is not written; () = none do.
        first_position: row of the first token's learned position.
        centred: norms take the mean away without a bias.
        scores_add_up: those of chosen experts do where ``norm_topk_prob`` is not written; None: not
            known of this class, and computed so.
        reads_norm: it reads ``norm_topk_prob``.
        share_factor: ``routed_scaling_factor`` where that is not written.
        sigmoid: scores of experts are sigmoids, without a correction of their choice.
        norms_turned: norms of queries and keys follow the rotation, and remove its scale.
        activation: default activation; empty: the usual one.
        legacy: activations that are written and others that are meant.
        embed_scaled: the embedding is multiplied by the square root of its width.
        score_width: ``query_pre_attn_scalar``, the width that scores are divided by the root of; 0:
            a head's.
        plain_scores: they are not divided.
        tied_scaled: what a head that is the embedding reads is divided by the root of its width,
            unless ``scale_decoder_outputs`` is false.
        final_cap: ``final_logit_softcapping`` where that is not written.
        reads_cap: it reads that.
        reads_slope: it reads ``swiglu_alpha``.
        factors: names of `FACTORS` that it reads, and their values where they are not written.
        scoring: ``scoring_func`` that it computes, whatever is written.
        trained: positions of the first training, where they were made longer; 0: what the
            configuration says of others.
        least_step: of a scan where ``time_step_min`` is not written, which it reads for that; 0: it
            reads ``time_step_limit``.
        reads_interleave: published weights have turned elements as pairs unless ``rope_interleave``
            is false.
        leaves_out: fields that it does not read, though other classes do.
        fixed: fields that it does not read, and what it computes.
        differs: how what we compute differs from the published model, whatever the configuration
            says.
    """

    eps: float = 1e-6
    rope_base: float = 10000.0
    rope_share: bool = False
    usual_share: float = 1.0
    turned: int = 0
    local_base: float | None = None
    rope: Mapping[str, Any] = field(default_factory=dict)
    axes: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    first_position: int = 0
    centred: bool = False
    trained: int = 0
    scores_add_up: bool | None = None
    reads_norm: bool = True
    share_factor: float = 1.0
    sigmoid: bool = False
    norms_turned: bool = False
    scoring: str = ""
    activation: str = ""
    legacy: Mapping[str, str] = field(default_factory=dict)
    embed_scaled: bool = False
    score_width: float = 0.0
    plain_scores: bool = False
    tied_scaled: bool = False
    final_cap: float = 0.0
    reads_cap: bool = False
    reads_slope: bool = False
    factors: Mapping[str, float] = field(default_factory=dict)
    least_step: float = 0.0
    reads_interleave: bool = False
    leaves_out: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    differs: tuple[str, ...] = ()


_PLAIN: Final = ClassSettings()
UNKNOWN: Final = ClassSettings(rope_share=True)
_NO_ROTARY: Final = ClassSettings(eps=1e-5, rope_base=0.0)
_GEMMA: Final = ClassSettings(activation="gelu_pytorch_tanh", embed_scaled=True)
_OSS: Final = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
_CORE_CAP: Final = ("attn_logit_softcapping",)
_GEMMA4_TURNS: Final = {
    "full_attention": {"rope_type": PROPORTIONAL, "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
_GEMMA4: Final = replace(
    _GEMMA,
    rope_base=1e6,
    local_base=10000.0,
    rope=_GEMMA4_TURNS,
    kinds=(PROPORTIONAL,),
    plain_scores=True,
    scores_add_up=True,
    reads_norm=False,
    reads_cap=True,
    leaves_out=_CORE_CAP,
)
_T5: Final = ClassSettings(
    rope_base=0.0,
    plain_scores=True,
    tied_scaled=True,
    legacy={"gated-gelu": "gelu_new", "gated-silu": "silu", "gated-relu": "relu"},
)
_GLM: Final = ClassSettings(eps=1.5625e-7, rope_share=True, usual_share=0.5)
_M3: Final = {
    "n_shared_experts": 1,
    "use_routing_bias": True,
    "use_qk_norm": True,
    "use_gemma_norm": True,
    "multimodal_projector_bias": True,
}
CLASSES: Final[Mapping[str, ClassSettings]] = {
    **dict.fromkeys(
        ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"), _PLAIN
    ),
    **dict.fromkeys(
        ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"), ClassSettings(scores_add_up=False)
    ),
    "DeepseekV2ForCausalLM": ClassSettings(
        scores_add_up=False, reads_norm=False, scoring="softmax"
    ),
    **dict.fromkeys(
        ("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration"),
        ClassSettings(
            scores_add_up=True, share_factor=2.5, scoring="sigmoid", reads_interleave=True
        ),
    ),
    "Olmo2ForCausalLM": ClassSettings(eps=1e-5),
    "Phi3ForCausalLM": ClassSettings(eps=1e-5, rope_share=True, trained=4096),
    "MixtralForCausalLM": ClassSettings(
        eps=1e-5, rope_base=1e6, scores_add_up=True, reads_norm=False
    ),
    "GemmaForCausalLM": replace(_GEMMA, legacy={"gelu": "gelu_pytorch_tanh"}),
    "Gemma2ForCausalLM": replace(_GEMMA, score_width=256.0, final_cap=30.0, reads_cap=True),
    "Gemma3ForCausalLM": replace(
        _GEMMA,
        rope_base=1e6,
        local_base=10000.0,
        score_width=256.0,
        reads_cap=True,
        leaves_out=_CORE_CAP,
    ),
    **dict.fromkeys(("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"), _GEMMA4),
    "Olmo3ForCausalLM": ClassSettings(eps=1e-5, rope_base=500000.0, local_base=500000.0),
    "Exaone4ForCausalLM": ClassSettings(eps=1e-5),
    "GptOssForCausalLM": ClassSettings(
        eps=1e-5, rope_base=150000.0, scores_add_up=True, reads_norm=False, rope=_OSS
    ),
    "NemotronHForCausalLM": replace(
        _NO_ROTARY,
        activation="relu2",
        scores_add_up=True,
        scoring="sigmoid",
        least_step=0.001,
        leaves_out=("tie_word_embeddings",),
    ),
    "Qwen3NextForCausalLM": ClassSettings(rope_share=True, usual_share=0.25, scores_add_up=True),
    "JambaForCausalLM": replace(_NO_ROTARY, eps=1e-6, scores_add_up=False, reads_norm=False),
    **dict.fromkeys(
        ("GPT2LMHeadModel", "BloomForCausalLM", "MambaForCausalLM", "Mamba2ForCausalLM"), _NO_ROTARY
    ),
    "GPTBigCodeForCausalLM": replace(_NO_ROTARY, activation="gelu_pytorch_tanh"),
    "OPTForCausalLM": replace(_NO_ROTARY, activation="relu", first_position=2),
    "GPTNeoXForCausalLM": ClassSettings(
        eps=1e-5, rope_share=True, usual_share=0.25, activation="gelu"
    ),
    "FalconForCausalLM": ClassSettings(eps=1e-5, activation="gelu"),
    "NemotronForCausalLM": ClassSettings(
        eps=1e-5, rope_share=True, usual_share=0.5, activation="relu2"
    ),
    "Starcoder2ForCausalLM": ClassSettings(eps=1e-5, activation="gelu_pytorch_tanh"),
    "StableLmForCausalLM": ClassSettings(eps=1e-5, rope_share=True, usual_share=0.25),
    "PhiForCausalLM": ClassSettings(
        eps=1e-5, rope_share=True, usual_share=0.5, activation="gelu_new"
    ),
    "GPTJForCausalLM": ClassSettings(eps=1e-5, rope_share=True, turned=64, activation="gelu_new"),
    "CohereForCausalLM": ClassSettings(
        eps=1e-5, rope_base=500000.0, centred=True, factors={"logit_scale": 0.0625}
    ),
    "Cohere2ForCausalLM": ClassSettings(eps=1e-5, centred=True, factors={"logit_scale": 0.0625}),
    "GraniteForCausalLM": ClassSettings(
        factors={
            "embedding_multiplier": 1.0,
            "attention_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
        }
    ),
    **dict.fromkeys(("GlmForCausalLM", "Glm4ForCausalLM"), _GLM),
    "Glm4MoeForCausalLM": ClassSettings(
        eps=1e-5, rope_share=True, usual_share=0.5, scores_add_up=True, scoring="sigmoid"
    ),
    "FalconH1ForCausalLM": ClassSettings(
        eps=1e-5, factors={"embedding_multiplier": 1.0, "lm_head_multiplier": 1.0}
    ),
    "Llama4ForCausalLM": ClassSettings(
        eps=1e-5,
        rope_base=500000.0,
        scores_add_up=False,
        reads_norm=False,
        sigmoid=True,
        norms_turned=True,
    ),
    "OlmoeForCausalLM": ClassSettings(eps=1e-5, scores_add_up=False),
    "SmolLM3ForCausalLM": ClassSettings(rope_base=2e6),
    "SeedOssForCausalLM": _PLAIN,
    "ArceeForCausalLM": ClassSettings(eps=1e-5, activation="relu2"),
    "HeliumForCausalLM": ClassSettings(eps=1e-8, rope_base=100000.0),
    "Ernie4_5ForCausalLM": ClassSettings(eps=1e-5, rope_base=500000.0),
    "T5ForConditionalGeneration": replace(_T5, activation="relu"),
    "MT5ForConditionalGeneration": replace(_T5, activation="gated-gelu", tied_scaled=False),
    "UMT5ForConditionalGeneration": replace(_T5, activation="gated-gelu"),
    "LlavaForConditionalGeneration": _PLAIN,
    **dict.fromkeys(
        ("MiniMaxM3ForCausalLM", "MiniMaxM3SparseForConditionalGeneration"),
        ClassSettings(
            rope_base=5e6,
            rope_share=True,
            scores_add_up=True,
            reads_norm=False,
            share_factor=2.0,
            sigmoid=True,
            scoring="sigmoid",
            reads_slope=True,
            legacy={"swigluoai": "silu"},
            fixed=_M3,
        ),
    ),
    "Qwen3VLForConditionalGeneration": ClassSettings(rope_base=500000.0, axes=(24, 20, 20)),
    "Qwen3VLMoeForConditionalGeneration": ClassSettings(
        rope_base=500000.0, axes=(24, 20, 20), scores_add_up=True, reads_norm=False
    ),
}
"""By architecture. Values as in the configuration classes of Transformers 5
(github.com/huggingface/transformers)."""
