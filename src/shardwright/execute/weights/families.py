"""Where the parameters of each family of models stand in a Hugging Face checkpoint, as data.

Names are those that the families' classes in Transformers save. A family that has no table here is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from shardwright.errors import DataError

Rules = Mapping[str, "Rule"]
CONFIG: Final = "config.json"
"""What says which model a folder of weights is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Where a parameter stands.

    Args:
        tensor: its name; ``{layer}`` is the number of the layer, ``{expert}`` of the expert (then a tensor holds one expert).
        turned: the tensor is (out, in), ours (in, out).
        middle: the tensor has a dim of one element behind the first (weights of a convolution).
        beside: our parameters that share the tensor, one after another in its output dim, this one among them; () = it is alone.
        grouped: those stand in turns: for each head (or group of query heads, or single element) a share of each.
        heads: parameter whose heads those turns are, where it is none of them.
        rotary: parameter whose width is the rotary part of a head, its last elements, stored as pairs (even, odd) but where
            `Settings.rope_pairs` is false; ours are halves. Empty: stored as ours.
        pairs: the turned elements of every head, its first ones, are stored so.
        add: our value less the stored one.
    """

    tensor: str
    turned: bool = False
    middle: bool = False
    beside: tuple[str, ...] = ()
    grouped: bool = False
    heads: str = ""
    rotary: str = ""
    pairs: bool = False
    add: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of models.

    Args:
        outer: parameters of embedding and head, by our names. layers: of a layer; the tensor's name goes behind `stem`.
        predictors: of a module that predicts further tokens, where it differs from a layer; modules are numbered behind the layers.
        base: beginning of names that some files leave out.
    """

    name: str
    outer: Rules
    layers: Rules
    stem: str = "model.layers.{layer}."
    predictors: Rules = field(default_factory=dict)
    base: str = ""


def _plain(**names: str) -> dict[str, Rule]:
    return {ours.replace("__", "."): Rule(tensor=tensor) for ours, tensor in names.items()}


def _linear(ours: str, tensor: str) -> dict[str, Rule]:
    """Weight and bias of a projection; a missing bias is never asked for."""
    operator, _, number = ours.partition(":")
    suffix = f".{number}" if number else ""
    return {
        f"{operator}.weight{suffix}": Rule(tensor=f"{tensor}.weight", turned=True),
        f"{operator}.bias{suffix}": Rule(tensor=f"{tensor}.bias"),
    }


def _fused(operator: str, tensor: str, *, parts: int, grouped: bool = False, turned: bool = True) -> dict[str, Rule]:
    """A projection with several outputs that is one tensor."""
    found: dict[str, Rule] = {}
    for kind in ("weight", "bias"):
        names = tuple(f"{operator}.{kind}{f'.{i}' if i else ''}" for i in range(parts))
        found |= {
            name: Rule(tensor=f"{tensor}.{kind}", turned=turned and kind == "weight", beside=names, grouped=grouped) for name in names
        }
    return found


def _norm(ours: str, tensor: str) -> dict[str, Rule]:
    return {f"{ours}.{kind}": Rule(tensor=f"{tensor}.{kind}") for kind in ("weight", "bias")}


def _experts(tensors: tuple[str, str, str]) -> dict[str, Rule]:
    """Gate, up and down of the experts."""
    names = ("experts.up.weight", "experts.up.weight.1", "experts.down.weight")
    return {ours: Rule(tensor=f"{tensor}.weight", turned=True) for ours, tensor in zip(names, tensors, strict=True)}


def _one_more(rules: Rules) -> dict[str, Rule]:
    """Gains that are stored less one."""
    return {name: replace(rule, add=1.0) if "norm" in name and name.endswith("weight") else rule for name, rule in rules.items()}


def _turns_of(name: str, tensor: str) -> dict[str, Rule]:
    """Two parameters whose elements stand in turns."""
    both = (name, f"{name}.1")
    return {one: Rule(tensor=tensor, beside=both, grouped=True) for one in both}


def _in_heads(names: tuple[str, ...], tensor: str, *, heads: str = "") -> dict[str, Rule]:
    """Projections that are one tensor, for each head a share of each; `heads`: of another parameter."""
    return {name: Rule(tensor=f"{tensor}.weight", turned=True, beside=names, grouped=True, heads=heads) for name in names}


def _renamed(rules: Rules, stem: str, other: str) -> dict[str, Rule]:
    """The tensors of `stem` under another one."""
    return {name: replace(rule, tensor=rule.tensor.replace(stem, other, 1)) for name, rule in rules.items()}


def _in_pairs(rules: Rules) -> dict[str, Rule]:
    """Queries and keys whose turned elements stand as pairs."""
    turned = {f"qkv.{kind}{which}" for kind in ("weight", "bias") for which in ("", ".1")}
    return {name: replace(rule, pairs=True) if name in turned else rule for name, rule in rules.items()}


OUTER = {
    **_plain(embed__weight="model.embed_tokens.weight"),
    **_norm("norm", "model.norm"),
    **_linear("logits", "lm_head"),
}
SELF = {
    **_linear("qkv", "self_attn.q_proj"),
    **_linear("qkv:1", "self_attn.k_proj"),
    **_linear("qkv:2", "self_attn.v_proj"),
    **_plain(q_norm__weight="self_attn.q_norm.weight", k_norm__weight="self_attn.k_norm.weight"),
    **_linear("proj", "self_attn.o_proj"),
}
MLP = {
    **_linear("up", "mlp.gate_proj"),
    **_linear("up:1", "mlp.up_proj"),
    **_linear("down", "mlp.down_proj"),
}
NORMS = {**_norm("norm1", "input_layernorm"), **_norm("norm2", "post_attention_layernorm")}
POST_NORMS = {**_norm("post_norm1", "post_attention_layernorm"), **_norm("post_norm2", "post_feedforward_layernorm")}
EXPERTS = _experts(("mlp.experts.{expert}.gate_proj", "mlp.experts.{expert}.up_proj", "mlp.experts.{expert}.down_proj"))


def _shared(tensor: str) -> dict[str, Rule]:
    return {
        **_linear("shared.up", f"{tensor}.gate_proj"),
        **_linear("shared.up:1", f"{tensor}.up_proj"),
        **_linear("shared.down", f"{tensor}.down_proj"),
    }


LLAMA = {**NORMS, **SELF, **MLP}
LATENT = {
    **NORMS,
    **MLP,
    **EXPERTS,
    **_shared("mlp.shared_experts"),
    **_linear("router", "mlp.gate"),
    **_plain(router__correction="mlp.gate.e_score_correction_bias"),
    "q.weight": Rule(tensor="self_attn.q_proj.weight", turned=True, rotary="kv_down.weight.1"),
    **_linear("q_down", "self_attn.q_a_proj"),
    **_norm("q_norm", "self_attn.q_a_layernorm"),
    "q_up.weight": Rule(tensor="self_attn.q_b_proj.weight", turned=True, rotary="kv_down.weight.1"),
    **_fused("kv_down", "self_attn.kv_a_proj_with_mqa", parts=2),
    **_norm("kv_norm", "self_attn.kv_a_layernorm"),
    **_fused("kv_up", "self_attn.kv_b_proj", parts=2, grouped=True),
    **_linear("proj", "self_attn.o_proj"),
}
LATENT |= {f"kv_down.{k}.1": replace(LATENT[f"kv_down.{k}.1"], rotary="kv_down.weight.1") for k in ("weight", "bias")}
PREDICTOR = {
    **_norm("embed_norm", "enorm"),
    **_norm("hidden_norm", "hnorm"),
    **_linear("join", "eh_proj"),
    **_norm("norm", "shared_head.norm"),
}
GPT2 = {
    **_norm("norm1", "ln_1"),
    **_norm("norm2", "ln_2"),
    **_fused("qkv", "attn.c_attn", parts=3, turned=False),
    **_fused("proj", "attn.c_proj", parts=1, turned=False),
    **_fused("up", "mlp.c_fc", parts=1, turned=False),
    **_fused("down", "mlp.c_proj", parts=1, turned=False),
}
BLOOM = {
    **NORMS,
    **_fused("qkv", "self_attention.query_key_value", parts=3, grouped=True),
    **_linear("proj", "self_attention.dense"),
    **_linear("up", "mlp.dense_h_to_4h"),
    **_linear("down", "mlp.dense_4h_to_h"),
}
NEOX = {
    **NORMS,
    **_fused("qkv", "attention.query_key_value", parts=3, grouped=True),
    **_linear("proj", "attention.dense"),
    **_linear("up", "mlp.dense_h_to_4h"),
    **_linear("down", "mlp.dense_4h_to_h"),
}
OPT = {
    **_norm("norm1", "self_attn_layer_norm"),
    **_norm("norm2", "final_layer_norm"),
    **SELF,
    **_linear("proj", "self_attn.out_proj"),
    **_linear("up", "fc1"),
    **_linear("down", "fc2"),
}
UNGATED = {**NORMS, **SELF, **_linear("up", "mlp.up_proj"), **_linear("down", "mlp.down_proj")}
FUSED_GATE = {**LLAMA, **_fused("up", "mlp.gate_up_proj", parts=2)}
CODE = {
    **_norm("norm1", "ln_1"),
    **_norm("norm2", "ln_2"),
    **_linear("proj", "attn.c_proj"),
    **_linear("up", "mlp.c_fc"),
    **_linear("down", "mlp.c_proj"),
}
GPTJ = {
    **_norm("norm1", "ln_1"),
    **_linear("qkv", "attn.q_proj"),
    **_linear("qkv:1", "attn.k_proj"),
    **_linear("qkv:2", "attn.v_proj"),
    **_linear("proj", "attn.out_proj"),
    **_linear("up", "mlp.fc_in"),
    **_linear("down", "mlp.fc_out"),
}
PHI = {
    **_norm("norm1", "input_layernorm"),
    **SELF,
    **_linear("proj", "self_attn.dense"),
    **_linear("up", "mlp.fc1"),
    **_linear("down", "mlp.fc2"),
}
MIXER = {
    **_norm("norm", "norm"),
    **_plain(scan__a_log="mixer.A_log", scan__d="mixer.D", scan__dt_bias="mixer.dt_bias", gate_norm__weight="mixer.norm.weight"),
    **_linear("out_proj", "mixer.out_proj"),
}
MAMBA_OUTER = {**_plain(embed__weight="backbone.embeddings.weight"), **_norm("norm", "backbone.norm_f"), **_linear("logits", "lm_head")}


def _convolved(parts: int) -> dict[str, Rule]:
    rules = _fused("conv", "mixer.conv1d", parts=parts, turned=False)
    return {name: replace(rule, middle=rule.tensor.endswith("weight")) for name, rule in rules.items()}


MAMBA1 = {
    **MIXER,
    **_fused("in_proj", "mixer.in_proj", parts=2),
    **_convolved(1),
    **_fused("x_proj", "mixer.x_proj", parts=3),
    **_linear("dt_proj", "mixer.dt_proj"),
}


FAMILIES: Final[Mapping[str, Family]] = {
    **{
        architecture: Family(name=architecture, outer=OUTER, layers=LLAMA)
        for architecture in (
            *("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
            *("SmolLM3ForCausalLM", "SeedOssForCausalLM", "GraniteForCausalLM", "StableLmForCausalLM"),
        )
    },
    **{
        architecture: Family(name=architecture, outer=OUTER, layers=_in_pairs(LLAMA))
        for architecture in ("HeliumForCausalLM", "Ernie4_5ForCausalLM", "CohereForCausalLM", "Cohere2ForCausalLM")
    },
    "ArceeForCausalLM": Family(name="ArceeForCausalLM", outer=OUTER, layers=UNGATED),
    "NemotronForCausalLM": Family(name="NemotronForCausalLM", outer=_one_more(OUTER), layers=_one_more(UNGATED)),
    "Starcoder2ForCausalLM": Family(
        name="Starcoder2ForCausalLM", outer=OUTER, layers={**NORMS, **SELF, **_linear("up", "mlp.c_fc"), **_linear("down", "mlp.c_proj")}
    ),
    "GlmForCausalLM": Family(name="GlmForCausalLM", outer=OUTER, layers=_in_pairs(FUSED_GATE)),
    "Glm4ForCausalLM": Family(
        name="Glm4ForCausalLM",
        outer=OUTER,
        layers={
            **_in_pairs(FUSED_GATE),
            **_norm("post_norm1", "post_self_attn_layernorm"),
            **_norm("post_norm2", "post_mlp_layernorm"),
        },
    ),
    "Glm4MoeForCausalLM": Family(
        name="Glm4MoeForCausalLM",
        outer=OUTER,
        layers={
            **LLAMA,
            **EXPERTS,
            **_shared("mlp.shared_experts"),
            **_linear("router", "mlp.gate"),
            **_plain(router__correction="mlp.gate.e_score_correction_bias"),
        },
        predictors=PREDICTOR,
    ),
    "PhiForCausalLM": Family(name="PhiForCausalLM", outer={**OUTER, **_norm("norm", "model.final_layernorm")}, layers=PHI),
    "GPTNeoXForCausalLM": Family(
        name="GPTNeoXForCausalLM",
        outer={
            **_plain(embed__weight="gpt_neox.embed_in.weight"),
            **_norm("norm", "gpt_neox.final_layer_norm"),
            **_linear("logits", "embed_out"),
        },
        layers=NEOX,
        stem="gpt_neox.layers.{layer}.",
        base="gpt_neox.",
    ),
    "OPTForCausalLM": Family(
        name="OPTForCausalLM",
        outer={
            **_plain(embed__weight="model.decoder.embed_tokens.weight", embed__positions="model.decoder.embed_positions.weight"),
            **_norm("norm", "model.decoder.final_layer_norm"),
            **_linear("logits", "lm_head"),
        },
        layers=OPT,
        stem="model.decoder.layers.{layer}.",
        base="model.",
    ),
    "FalconForCausalLM": Family(
        name="FalconForCausalLM",
        outer={
            **_plain(embed__weight="transformer.word_embeddings.weight"),
            **_norm("norm", "transformer.ln_f"),
            **_linear("logits", "lm_head"),
        },
        layers=BLOOM,
        stem="transformer.h.{layer}.",
        base="transformer.",
    ),
    "GPTJForCausalLM": Family(
        name="GPTJForCausalLM",
        outer={**_plain(embed__weight="transformer.wte.weight"), **_norm("norm", "transformer.ln_f"), **_linear("logits", "lm_head")},
        layers=_in_pairs(GPTJ),
        stem="transformer.h.{layer}.",
        base="transformer.",
    ),
    "GPTBigCodeForCausalLM": Family(
        name="GPTBigCodeForCausalLM",
        outer={
            **_plain(embed__weight="transformer.wte.weight", embed__positions="transformer.wpe.weight"),
            **_norm("norm", "transformer.ln_f"),
            **_linear("logits", "lm_head"),
        },
        layers={**CODE, **_fused("qkv", "attn.c_attn", parts=3, grouped=True)},
        stem="transformer.h.{layer}.",
        base="transformer.",
    ),
    "OlmoeForCausalLM": Family(name="OlmoeForCausalLM", outer=OUTER, layers={**LLAMA, **EXPERTS, **_linear("router", "mlp.gate")}),
    **{
        architecture: Family(name=architecture, outer=OUTER, layers={**SELF, **MLP, **POST_NORMS})
        for architecture in ("Olmo2ForCausalLM", "Olmo3ForCausalLM", "Exaone4ForCausalLM")
    },
    "GptOssForCausalLM": Family(
        name="GptOssForCausalLM",
        outer=OUTER,
        layers={
            **NORMS,
            **SELF,
            **_plain(
                core__sinks="self_attn.sinks",
                experts__down__weight="mlp.experts.down_proj",
                experts__down__bias="mlp.experts.down_proj_bias",
            ),
            **_linear("router", "mlp.router"),
            **_turns_of("experts.up.weight", "mlp.experts.gate_up_proj"),
            **_turns_of("experts.up.bias", "mlp.experts.gate_up_proj_bias"),
        },
    ),
    "NemotronHForCausalLM": Family(
        name="NemotronHForCausalLM",
        outer=MAMBA_OUTER,
        layers={
            **MIXER,
            **_fused("in_proj", "mixer.in_proj", parts=5),
            **_convolved(3),
            **_linear("qkv", "mixer.q_proj"),
            **_linear("qkv:1", "mixer.k_proj"),
            **_linear("qkv:2", "mixer.v_proj"),
            **_linear("proj", "mixer.o_proj"),
            **_linear("up", "mixer.up_proj"),
            **_linear("down", "mixer.down_proj"),
            **_linear("router", "mixer.gate"),
            **_plain(router__correction="mixer.gate.e_score_correction_bias"),
            **_linear("experts.up", "mixer.experts.{expert}.up_proj"),
            **_linear("experts.down", "mixer.experts.{expert}.down_proj"),
            **_linear("shared.up", "mixer.shared_experts.up_proj"),
            **_linear("shared.down", "mixer.shared_experts.down_proj"),
        },
        stem="backbone.layers.{layer}.",
    ),
    "Qwen3NextForCausalLM": Family(
        name="Qwen3NextForCausalLM",
        outer=_one_more(OUTER),
        layers={
            **_one_more({**LLAMA, **EXPERTS, **_shared("mlp.shared_expert")}),
            **_linear("router", "mlp.gate"),
            **_linear("shared.gate", "mlp.shared_expert_gate"),
            **_in_heads(("qkv.weight", "qkv.weight.3"), "self_attn.q_proj"),
            **_in_heads(tuple(f"in_proj.weight{i}" for i in ("", ".1", ".2", ".3")), "linear_attn.in_proj_qkvz"),
            **_in_heads(("in_proj.weight.4", "in_proj.weight.5"), "linear_attn.in_proj_ba", heads="in_proj.weight"),
            **_renamed(_convolved(3), "mixer.", "linear_attn."),
            **_plain(scan__a_log="linear_attn.A_log", scan__dt_bias="linear_attn.dt_bias", gate_norm__weight="linear_attn.norm.weight"),
            **_linear("out_proj", "linear_attn.out_proj"),
        },
    ),
    "JambaForCausalLM": Family(
        name="JambaForCausalLM",
        outer={**OUTER, **_norm("norm", "model.final_layernorm")},
        layers={
            **_norm("norm1", "input_layernorm"),
            **_norm("norm2", "pre_ff_layernorm"),
            **SELF,
            **_renamed(MAMBA1, "mixer.", "mamba."),
            **_plain(x_norm__dt="mamba.dt_layernorm.weight", x_norm__b="mamba.b_layernorm.weight", x_norm__c="mamba.c_layernorm.weight"),
            **_renamed({**MLP, **EXPERTS}, "mlp.", "feed_forward."),
            **_linear("router", "feed_forward.router"),
        },
    ),
    "Phi3ForCausalLM": Family(
        name="Phi3ForCausalLM",
        outer=OUTER,
        layers={
            **LLAMA,
            **_fused("qkv", "self_attn.qkv_proj", parts=3),
            **_fused("up", "mlp.gate_up_proj", parts=2),
        },
    ),
    "MixtralForCausalLM": Family(
        name="MixtralForCausalLM",
        outer=OUTER,
        layers={
            **NORMS,
            **SELF,
            **_linear("router", "block_sparse_moe.gate"),
            **_experts(tuple(f"block_sparse_moe.experts.{{expert}}.w{i}" for i in (1, 3, 2))),  # type: ignore[arg-type]
        },
    ),
    "Qwen2MoeForCausalLM": Family(
        name="Qwen2MoeForCausalLM",
        outer=OUTER,
        layers={
            **LLAMA,
            **EXPERTS,
            **_shared("mlp.shared_expert"),
            **_linear("router", "mlp.gate"),
            **_linear("shared.gate", "mlp.shared_expert_gate"),
        },
    ),
    "Qwen3MoeForCausalLM": Family(name="Qwen3MoeForCausalLM", outer=OUTER, layers={**LLAMA, **EXPERTS, **_linear("router", "mlp.gate")}),
    "DeepseekV2ForCausalLM": Family(name="DeepseekV2ForCausalLM", outer=OUTER, layers=LATENT),
    "DeepseekV3ForCausalLM": Family(name="DeepseekV3ForCausalLM", outer=OUTER, layers=LATENT, predictors=PREDICTOR),
    "GemmaForCausalLM": Family(name="GemmaForCausalLM", outer=_one_more(OUTER), layers=_one_more(LLAMA)),
    **{
        architecture: Family(
            name=architecture,
            outer=_one_more(OUTER),
            layers=_one_more({**LLAMA, **POST_NORMS, **_norm("norm2", "pre_feedforward_layernorm")}),
        )
        for architecture in ("Gemma2ForCausalLM", "Gemma3ForCausalLM")
    },
    "GPT2LMHeadModel": Family(
        name="GPT2LMHeadModel",
        outer={
            **_plain(embed__weight="transformer.wte.weight", embed__positions="transformer.wpe.weight"),
            **_norm("norm", "transformer.ln_f"),
            **_linear("logits", "lm_head"),
        },
        layers=GPT2,
        stem="transformer.h.{layer}.",
        base="transformer.",
    ),
    "BloomForCausalLM": Family(
        name="BloomForCausalLM",
        outer={
            **_plain(embed__weight="transformer.word_embeddings.weight"),
            **_norm("embed_norm", "transformer.word_embeddings_layernorm"),
            **_norm("norm", "transformer.ln_f"),
            **_linear("logits", "lm_head"),
        },
        layers=BLOOM,
        stem="transformer.h.{layer}.",
        base="transformer.",
    ),
    "Mamba2ForCausalLM": Family(
        name="Mamba2ForCausalLM",
        outer=MAMBA_OUTER,
        layers={**MIXER, **_fused("in_proj", "mixer.in_proj", parts=5), **_convolved(3)},
        stem="backbone.layers.{layer}.",
    ),
    "MambaForCausalLM": Family(
        name="MambaForCausalLM",
        outer=MAMBA_OUTER,
        layers=MAMBA1,
        stem="backbone.layers.{layer}.",
    ),
}


def family_of(architecture: str) -> Family:
    """The table of a model's family.

    Raises:
        DataError: there is none; the families that have one are named.
    """
    found = FAMILIES.get(architecture)
    if found is None:
        raise DataError(
            f"weights of {architecture} cannot be read or written: where its parameters stand is not known",
            hint=f"families that can: {', '.join(sorted(FAMILIES))}",
        )
    return found
