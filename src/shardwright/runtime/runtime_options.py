"""Vocabulary of options of all training frameworks, and functions that set them on a runtime.

Each value of an option has the launch flag that sets it and the facts that it changes. A framework
offers some of the options; the version's own value of each is the default. A runtime is then a
framework's version and options, written as ``megatron-core-0.12 tp_overlap=dgrad loss=te``. An
option changes fields of `Runtime` that the cost model reads, never a number of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Final, TypeVar

from shardwright.errors import RuntimeModelError, nearest
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.derive_runtime import Statement, collected_facts
from shardwright.runtime.framework_description import Offer, Options, Runtime

MAX_SHOWN: Final = 60
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of the vocabulary: its name, values and rules for search and devices.

    Args:
        about: the decision that the option takes.
        values: value -> its meaning.
        numerics: the option changes the results of computation, not only the speed; a search never
            chooses it by itself.
        searched: values that a search tries by itself, where a runtime has them. Their time and
            memory are both priced, and none is better in every plan.
        along: axes of a grid; a plan that splits nothing along these axes does not depend on the
            option; empty = every plan does.
        of_device: the values are kernels, named as devices name them; not every device has all.
        vendors: value -> vendors whose accelerators run it, for values of some vendors alone; a
            user's own accelerator may run any.
    """

    name: str
    about: str
    values: Mapping[str, str]
    numerics: bool = False
    searched: tuple[str, ...] = ()
    along: tuple[str, ...] = ()
    of_device: bool = False
    vendors: Mapping[str, frozenset[str]] = field(default_factory=dict)


def _switch(
    name: str, about: str, *, numerics: bool = False, vendors: frozenset[str] = frozenset()
) -> Option:
    """Make an option with the values on and off.

    Args:
        vendors: vendors whose accelerators can have it on, where not all can.
    """
    of_on = {"on": vendors} if vendors else {}
    return Option(
        name=name, about=about, values={"on": "yes", "off": "no"}, numerics=numerics, vendors=of_on
    )


NVIDIA: Final = frozenset({"NVIDIA"})
"""Vendors with CUDA-only features: userbuffers of Transformer Engine, DeepEP, HybridEP, cuDNN, and
CUDA_ environment variables.
"""
CUDA_AND_ROCM: Final = frozenset({"NVIDIA", "AMD"})
"""Vendors of features compiled for CUDA and ROCm: Transformer Engine's Triton kernels, and
collectives that MSCCL runs.
"""
OPTIONS: Final = (
    Option(
        name="transformer",
        about="implementation of the transformer layers",
        values={"te": "Transformer Engine", "local": "the framework's own"},
    ),
    Option(
        name="kernels",
        about="element-wise kernels",
        values={
            "fused": "one kernel for a chain of operators",
            "eager": "one kernel for each operator",
            "compiled": "kernels fused by a compiler",
        },
    ),
    Option(
        name="attention",
        about="kernel of the attention core",
        values={
            "unfused": "GEMMs and softmax; scores are written to memory",
            "flash-1": "FlashAttention",
            "flash-2": "FlashAttention-2",
            "flash-3": "FlashAttention-3",
            "cudnn": "cuDNN's fused attention",
        },
        of_device=True,
    ),
    _switch(
        "fp8_attention",
        "the attention core multiplies in 8 bits if the job computes in 8 or 4 bits",
        numerics=True,
        vendors=NVIDIA,
    ),
    Option(
        name="loss",
        about="implementation of the cross-entropy loss",
        values={
            "plain": "a kernel for each step of the formula, on an fp32 copy",
            "native": "kernels compiled by torch.compile",
            "te": "Transformer Engine's kernel, in place",
        },
        vendors={"te": CUDA_AND_ROCM},
    ),
    Option(
        name="logits_parts",
        about=(
            "parts of a microbatch's tokens whose logits are computed, and recomputed in backward,"
            " one after another"
        ),
        values={"1": "all at once", **{str(n): f"{n} parts" for n in (2, 4, 8, 16, 32)}},
    ),
    Option(
        name="linear_loss",
        about="the head's GEMM and the loss as one operator over parts of a microbatch's tokens",
        values={
            "off": "logits of all tokens at once",
            "liger": "Liger's fused linear cross-entropy: a part's gradient replaces its logits",
            "cut": "Cut Cross-Entropy: logits stay in registers, and are recomputed in backward",
            "chunked": "torchtune's LinearCrossEntropyLoss: eight parts under autograd",
            "parts": "torchtitan's ChunkedLossWrapper: eight parts, each with its backward at once",
        },
        numerics=True,
        vendors={"liger": CUDA_AND_ROCM, "cut": CUDA_AND_ROCM},
    ),
    _switch("wgrad_fusion", "weight gradients are accumulated in the epilogue of their GEMM"),
    Option(
        name="tp_overlap",
        about="overlap of tensor-parallel collectives with GEMMs",
        values={
            "none": "no overlap",
            "dgrad": "the input gradient's collective overlaps the weight gradient's GEMM",
            "userbuffers": "chunks of both overlap (Transformer Engine's userbuffers)",
            "async": "chunks of both overlap (PyTorch's symmetric memory)",
        },
        searched=("dgrad", "userbuffers", "async"),
        along=("tp",),
        vendors={"userbuffers": NVIDIA},
    ),
    Option(
        name="collectives",
        about="algorithms of the all-reduces",
        values={
            "library": "those of the communication library (NCCL, RCCL)",
            "synthesised": "also trees and forests synthesised for the group, run by MSCCL",
        },
        vendors={"synthesised": CUDA_AND_ROCM},
    ),
    _switch(
        "launch_blocking",
        "the host waits for each kernel before it launches the next (CUDA_LAUNCH_BLOCKING=1)",
        vendors=NVIDIA,
    ),
    _switch("tp_timers", "timers around tensor-parallel collectives wait for the device"),
    _switch("grad_overlap", "gradient reduction overlaps the backward pass"),
    _switch("param_overlap", "parameter all-gathers overlap compute"),
    Option(
        name="p2p_overlap",
        about="overlap of pipeline sends and receives with compute",
        values={"interleaved": "only if ranks have several chunks", "off": "never"},
    ),
    Option(
        name="grad_dtype",
        about="dtype in which gradients are accumulated and reduced",
        values={"fp32": "32 bits", "bf16": "16 bits"},
        numerics=True,
    ),
    _switch(
        "bf16_optimizer",
        "DeepSpeed's BF16_Optimizer: unsharded fp32 gradients beside the bf16 ones",
        numerics=True,
    ),
    _switch(
        "grad_check",
        "the norm of every gradient bucket is computed before its collective, to find NaN",
    ),
    Option(
        name="grad_average",
        about="where gradients are divided by the number of replicas",
        values={"collective": "in the collective", "buffer": "in their buffer before it"},
    ),
    Option(
        name="fp8",
        about="scaling factors of 8-bit GEMM operands",
        values={
            "delayed": "one for each tensor, from the magnitudes of earlier steps",
            "current": "one for each tensor, from its current magnitude",
            "rowwise": "one for each row, in the direction of each GEMM",
            "mx": "one for 32 elements (MXFP8)",
            "blockwise": "one for 128 elements; one for 128 x 128 elements of weights",
        },
        numerics=True,
    ),
    _switch(
        "fp8_gather",
        "parameters of 8-bit GEMMs are stored and all-gathered in 8 bits",
        numerics=True,
    ),
    Option(
        name="dispatcher",
        about="transport of tokens to their experts",
        values={
            "allgather": "an all-gather of all tokens of the expert-parallel group",
            "alltoall": "an all-to-all with one copy for each chosen expert",
            "flex": (
                "one copy for each device and node with a chosen expert (DeepEP; HybridEP in"
                " larger islands)"
            ),
            "hybridep": "as flex, always by HybridEP",
        },
        searched=("alltoall", "flex"),
        vendors={"flex": NVIDIA, "hybridep": NVIDIA},
    ),
    Option(
        name="dispatch_dtype",
        about="dtype of tokens sent to experts, and of the gradients of the experts' outputs",
        values={
            "bf16": "16 bits",
            "fp8": "8 bits and a scale for each 128 elements, if the job computes in 8 or 4 bits",
        },
        numerics=True,
    ),
    Option(
        name="dispatch_sms",
        about="multiprocessors reserved for communication that overlaps compute (DualPipe)",
        values={"20": "20", "24": "24", "6": "6"},
    ),
    Option(
        name="gate_dtype",
        about="dtype of the saved inputs of the feed-forward's activation function",
        values={"activation": "that of all activations", "fp8": "8 bits"},
        numerics=True,
    ),
    Option(
        name="moments",
        about="dtype of the optimizer's states",
        values={
            "fp32": "32 bits, or the dtype of the job",
            "bf16": "16 bits; the master copy stays",
            "8bit": "8 bits, quantised in blocks (bitsandbytes, torchao); the master copy stays",
        },
        numerics=True,
    ),
    Option(
        name="capacity",
        about="number of tokens that an expert processes",
        values={
            "dropless": "all tokens routed to it; the host may have to read their number",
            "fixed": "a fixed number; further tokens are dropped",
        },
        numerics=True,
    ),
    replace(
        _switch(
            "expert_overlap",
            "token dispatch and combine overlap the kernels of another microbatch",
        ),
        searched=("off", "on"),
        along=("ep",),
    ),
    Option(
        name="grouped_experts",
        about="GEMMs of the experts on a device",
        values={
            "each": "one GEMM, and quantisation of its operands, for each expert",
            "fused": "one grouped GEMM for all experts",
        },
    ),
    _switch(
        "router_fusion", "router scores, expert selection and auxiliary losses are fused kernels"
    ),
    _switch("permute_fusion", "tokens are permuted by one kernel", vendors=CUDA_AND_ROCM),
    Option(
        name="graphs",
        about="part of an iteration that CUDA graphs replay",
        values={
            "none": "nothing",
            "router": "routers",
            "mamba": "state-space mixers",
            "attn": "attention and state-space mixers",
            "attention-router": "all but the experts",
            "iteration": "a whole iteration",
        },
    ),
    Option(
        name="remat",
        about="activations that a layer saves (remat_policy); all others are recomputed",
        values={
            "full": "its input (and the GEMM outputs with selective recompute)",
            "minimal_with_context": "the GEMM outputs and the attention core's output",
            "minimal": "the GEMM outputs",
            "save_dot_with_context_except_mlp": (
                "queries, keys, values, the attention core's output and the output projection"
            ),
            "save_dot_except_mlpwi": "the GEMM outputs except those before the activation function",
            "save_dot_except_mlp": "queries, keys, values and the attention output projection",
            "save_qkv_proj": "queries, keys and values",
            "save_out_proj": "the attention output projection",
            "qkv_proj_offloaded": "queries, keys and values, in host memory",
            "minimal_offloaded": "the GEMM outputs, in host memory",
            "attention_offloaded": (
                "its input, queries, keys, values and the attention output projection, in host"
                " memory"
            ),
        },
    ),
    _switch("cpu_checkpoints", "inputs of recomputed layers are kept in host memory"),
    _switch("param_offload", "ZeRO-3 parameter shards are kept in host memory"),
    _switch("recompute_norms", "norms are recomputed in backward"),
    _switch(
        "recompute_mla", "up projections of multi-head latent attention are recomputed in backward"
    ),
    _switch("recompute_moe_act", "the experts' activation function is recomputed in backward"),
    _switch("recompute_mlp", "the dense feed-forward is recomputed in backward"),
    _switch("recompute_shared", "the shared experts' feed-forward is recomputed in backward"),
    _switch("recompute_moe", "routed experts, with their dispatch, are recomputed in backward"),
)
BY_NAME: Final[Mapping[str, Option]] = {option.name: option for option in OPTIONS}
OF_EXPERTS: Final = frozenset(
    {
        *(
            "dispatcher",
            "dispatch_dtype",
            "dispatch_sms",
            "capacity",
            "expert_overlap",
            "grouped_experts",
            "router_fusion",
        ),
        *("permute_fusion", "recompute_moe_act", "recompute_shared", "recompute_moe"),
    }
)
"""Options that have no effect on a model without experts."""
_PLACE: Final = {name: place for place, name in enumerate(BY_NAME)}


def option_offer(
    option: str,
    value: str,
    flag: str,
    *statements: Statement,
    needs: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Offer:
    """Describe one value of an option, with its launch flag and the runtime fields it changes.

    Args:
        option, value: of the vocabulary `OPTIONS`.
        flag: the launch flag that sets the value.
        statements: the fields of `Runtime` that the value changes, with their sources.
        needs: {other option: values} without which the framework refuses this value.

    Raises:
        ValueError: no such option or value, or a field is stated twice (a mistake in a runtime
            file, not a user's).
    """
    for name, values_of in ((option, (value,)), *needs.items()):
        unknown_value = next((word for word in values_of if word not in BY_NAME[name].values), "")
        if unknown_value:
            raise ValueError(f"{name} has no value {unknown_value}")
    values, facts = collected_facts(f"{option}={value}", statements)
    return Offer(
        option=option,
        value=value,
        flag=flag,
        values=tuple(values.items()),
        facts=facts,
        needs=tuple(needs.items()),
    )


def default_options(runtime: Runtime) -> Options:
    """Options of a framework's version at their defaults, as (option, value) pairs.

    Raises:
        ValueError: the version's fields match no value of an option, or several (a mistake in a
            runtime file, not a user's).
    """
    defaults = []
    for name in offered_values(runtime):
        matching = [
            o.value
            for o in runtime.offers
            if o.option == name
            and all(getattr(runtime, field) == value for field, value in o.values)
        ]
        if len(matching) != 1:
            raise ValueError(
                f"{runtime.name}: {name} is {' and '.join(matching) or 'none of its values'}"
            )
        defaults.append((name, matching[0]))
    return tuple(defaults)


def offered_values(runtime: Runtime) -> dict[str, tuple[str, ...]]:
    """{option: values that `runtime` can run}, options in the order of the vocabulary."""
    names = sorted({offer.option for offer in runtime.offers}, key=_PLACE.__getitem__)
    return {
        name: tuple(offer.value for offer in runtime.offers if offer.option == name)
        for name in names
    }


def restrict_to_devices(
    runtime: Runtime,
    *,
    kernels: frozenset[str],
    called: str,
    vendors: Mapping[str, str],
    written: Mapping[str, str] = MappingProxyType({}),
) -> Runtime:
    """Remove the option values that the cluster's devices cannot run from `runtime`.

    Returns the same object where the devices support every value.

    A default that the devices do not support is replaced by the value before it in the vocabulary.

    Args:
        kernels: names of the kernels that every device has.
        called: name of a device with the fewest kernels.
        vendors: vendors of the devices, where known -> name of a device of each.
        written: options that the user wrote, including those that equal the defaults.

    Raises:
        RuntimeModelError: a written option, or one set on the runtime, is not supported.
    """
    unsupported = tuple(
        offer
        for offer in runtime.offers
        if not _is_on_devices(offer, kernels=kernels, vendors=vendors)
    )
    if not unsupported:
        return runtime
    for offer in unsupported:
        if offer.value in (dict(runtime.options).get(offer.option), written.get(offer.option)):
            alternatives = " or ".join(
                f"{o.option}={o.value}"
                for o in runtime.offers
                if o.option == offer.option and o not in unsupported
            )
            of_vendor = BY_NAME[offer.option].vendors.get(offer.value, frozenset(vendors))
            unsupported_device = next(
                (device for vendor, device in vendors.items() if vendor not in of_vendor), ""
            )
            reason = (
                f"{unsupported_device} cannot run"
                if unsupported_device
                else f"{called} has no kernel for"
            )
            raise RuntimeModelError(
                f"{reason} {offer.option}={offer.value}",
                hint=alternatives or f"leave {offer.option} out",
            )
    restricted = replace(
        runtime, offers=tuple(offer for offer in runtime.offers if offer not in unsupported)
    )
    return _with_supported_defaults(
        restricted, tuple(offer for offer in unsupported if not BY_NAME[offer.option].of_device)
    )


def _is_on_devices(offer: Offer, *, kernels: frozenset[str], vendors: Collection[str]) -> bool:
    """True if the devices have the offer's kernel and are of a vendor that runs the offer."""
    option = BY_NAME[offer.option]
    if option.of_device and offer.value not in kernels:
        return False
    return offer.value not in option.vendors or option.vendors[offer.value].issuperset(vendors)


def _with_supported_defaults(runtime: Runtime, unsupported: Iterable[Offer]) -> Runtime:
    """Replace each default option value that the devices cannot run by a supported one.

    The replacement is the value before it in the vocabulary.
    """
    defaults, facts = dict(runtime.own), {fact.field: fact for fact in runtime.facts}
    values: dict[str, object] = {}
    set_here = dict(runtime.options)
    for offer in unsupported:
        value_order = list(BY_NAME[offer.option].values)
        alternatives = [
            candidate for candidate in runtime.offers if candidate.option == offer.option
        ]
        if defaults.get(offer.option) != offer.value or not alternatives:
            continue
        earlier = [
            candidate
            for candidate in alternatives
            if value_order.index(candidate.value) < value_order.index(offer.value)
        ] or alternatives
        replacement = max(earlier, key=lambda candidate: value_order.index(candidate.value))
        defaults[offer.option] = replacement.value
        if offer.option not in set_here:
            values |= dict(replacement.values)
            facts |= {fact.field: fact for fact in replacement.facts}
    if defaults == dict(runtime.own):
        return runtime
    options = tuple(pair for pair in runtime.options if defaults.get(pair[0]) != pair[1])
    name = " ".join(
        [runtime.base or runtime.name, *(f"{option}={value}" for option, value in options)]
    )
    return replace(
        runtime,
        **values,  # type: ignore[arg-type]
        own=tuple(defaults.items()),
        facts=tuple(facts.values()),
        options=options,
        name=name,
    )


def in_vocabulary_order(options: Iterable[tuple[str, Value]]) -> tuple[tuple[str, Value], ...]:
    """Sort (option, any value) pairs into the order of the vocabulary."""
    return tuple(sorted(options, key=lambda pair: _PLACE[pair[0]]))


def runtime_with_options(runtime: Runtime, written: Iterable[tuple[str, str]]) -> Runtime:
    """Set options on a runtime; its name then lists the options that differ from the defaults.

    Options that were set before stay, unless `written` sets them too.

    Raises:
        RuntimeModelError: an unknown option; an option or a value that the framework does not
            offer; an option set twice; or two options that contradict each other.
    """
    offers_chosen: dict[str, Offer] = {}
    for name, value in written:
        if name in offers_chosen and offers_chosen[name].value != value:
            raise RuntimeModelError(
                f"option {name} is set twice",
                hint=f"{name}={offers_chosen[name].value} or {name}={value}",
            )
        offers_chosen[name] = _find_offer(runtime, name, value)
    present = {**dict(runtime.own), **dict(runtime.options)}
    changes = [
        offers_chosen[name]
        for name, _ in in_vocabulary_order((name, "") for name in offers_chosen)
        if present.get(name) != offers_chosen[name].value
    ]
    if not changes:
        return runtime
    values: dict[str, object] = {}
    for offer in changes:
        for changed, setting in offer.values:
            if values.setdefault(changed, setting) != setting:
                raise RuntimeModelError(
                    f"option {offer.option}={offer.value} contradicts another one of"
                    f" {', '.join(c.option for c in changes)}",
                    hint="leave one of them out",
                )
    facts = {fact.field: fact for fact in runtime.facts} | {
        fact.field: fact for offer in changes for fact in offer.facts
    }
    merged = {**dict(runtime.options), **{offer.option: offer.value for offer in changes}}
    options = in_vocabulary_order(pair for pair in merged.items() if pair not in runtime.own)
    base = runtime.base or runtime.name
    _require_together(runtime, {**dict(runtime.own), **merged})
    name = " ".join([base, *(f"{option}={value}" for option, value in options)])
    return replace(
        runtime,
        **values,  # type: ignore[arg-type]
        name=name,
        facts=tuple(facts.values()),
        options=options,
        base=base,
    )


def _require_together(runtime: Runtime, present: Mapping[str, str]) -> None:
    """Raise RuntimeModelError if a set option needs another value of a second option."""
    for offer in runtime.offers:
        if present.get(offer.option) != offer.value:
            continue
        for name, allowed in offer.needs:
            if present.get(name, allowed[0]) not in allowed:
                raise RuntimeModelError(
                    f"{runtime.base or runtime.name} runs {offer.option}={offer.value} with"
                    f" {name}={' or '.join(allowed)} alone, not with {name}={present[name]}",
                    hint=f"{name}={allowed[0]}, or without {offer.option}={offer.value}",
                )


def _find_offer(runtime: Runtime, name: str, value: str) -> Offer:
    """Find the runtime's offer of an option at a value; RuntimeModelError where it has none."""
    offers = {offer.value: offer for offer in runtime.offers if offer.option == name}
    if name not in BY_NAME:
        raise RuntimeModelError(
            f"unknown option {name[:MAX_SHOWN]!r}",
            hint=nearest(name, offered_values(runtime) or BY_NAME),
        )
    if not offers:
        offered_names = ", ".join(offered_values(runtime)) or "none"
        raise RuntimeModelError(
            f"{runtime.name} has no option {name}", hint=f"it has {offered_names}"
        )
    if value not in offers:
        raise RuntimeModelError(
            f"{runtime.name} cannot have {name}={value[:MAX_SHOWN]}",
            hint=f"{name} is {' or '.join(offers)}",
        )
    return offers[value]
