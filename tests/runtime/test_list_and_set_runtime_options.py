"""Options of runtimes: a framework's version has one value of each, any other can be set and taken
back, and text says them all."""

from __future__ import annotations

from dataclasses import fields

import pytest

from shardwright.errors import RuntimeModelError
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    Capture,
    ExpertDispatch,
    TpOverlap,
)
from shardwright.runtime.list_and_set_runtime_options import (
    default_options,
    offered_values,
    runtime_with_options,
)
from shardwright.runtime.option_vocabulary import BY_NAME, OPTIONS, option_offer
from shardwright.runtime.restrict_runtime_options_to_devices import restrict_to_devices
from shardwright.runtime.runtime_from_sourced_statements import (
    IDENTITY,
    derive,
    identity_fields,
    stated,
)
from shardwright.runtime.runtime_registry import VENDORS, load_runtime, runtime_names

OFFERS = [
    (name, offer.option, offer.value)
    for name in runtime_names()
    for offer in load_runtime(name).offers
]
SETTINGS = [field.name for field in fields(Runtime) if field.name not in IDENTITY]


def settings(runtime: Runtime) -> dict[str, object]:
    return {name: getattr(runtime, name) for name in SETTINGS}


@pytest.mark.parametrize("name", runtime_names())
def test_every_value_is_set_taken_back_and_written(name: str) -> None:
    for offer in load_runtime(name).offers:
        is_set_taken_back_and_written(name, offer.option, offer.value)


def is_set_taken_back_and_written(name: str, option: str, value: str) -> None:
    base = load_runtime(name)
    made = load_runtime(f"{name} {option}={value}")
    own = dict(base.own)[option]
    assert load_runtime(made.name) == made
    assert runtime_with_options(made, [(option, value)]) is made
    assert settings(runtime_with_options(made, [(option, own)])) == settings(base)
    if value == own:
        assert made == base
        return
    assert (made.name, made.base, made.options) == (
        f"{name} {option}={value}",
        name,
        ((option, value),),
    )
    assert settings(made) != settings(base)
    backed = [fact.field for fact in made.facts]
    assert sorted(backed) == sorted(fact.field for fact in base.facts)
    (offer,) = (o for o in base.offers if (o.option, o.value) == (option, value))
    assert all(fact in made.facts for fact in offer.facts)


def test_every_option_of_the_vocabulary_is_offered_by_some_framework() -> None:
    assert {option for _, option, _ in OFFERS} == set(BY_NAME)
    for option in OPTIONS:
        assert option.about
        assert len(option.values) > 1
        some = {value for _, name, value in OFFERS if name == option.name}
        assert some <= set(option.values)


def test_a_value_other_than_the_own_has_a_flag() -> None:
    """Else nobody could set it; what is not set needs none."""
    bases = [
        load_runtime(name) for name in runtime_names() if load_runtime(name).framework != "HAI-LLM"
    ]  # whose flags are not published
    without = [
        offer
        for base in bases
        for offer in base.offers
        if not offer.flag and (offer.option, offer.value) not in base.own
    ]
    # Off is what is not set, where a framework's guide, and so its version here, sets it.
    assert {offer.option for offer in without} <= {
        "tp_overlap",
        "grad_overlap",
        "param_overlap",
        "grad_check",
        "grad_average",
        "permute_fusion",
        "kernels",
    }


def test_one_line_says_a_launch_script() -> None:
    made = load_runtime("Megatron-Bridge graphs=ITERATION dispatcher=alltoall capacity=fixed")
    assert made.name == "megatron-bridge dispatcher=alltoall capacity=fixed graphs=iteration"
    assert (made.capture, made.expert_dispatch, made.fixed_capacity) == (
        Capture.ITERATION,
        ExpertDispatch.ALL_TO_ALL,
        True,
    )
    assert load_runtime("mcore tp_overlap=dgrad").tp_overlap is TpOverlap.DGRAD


def test_the_host_reads_token_counts_where_nothing_else_knows_them() -> None:
    reads = {
        text: load_runtime(f"megatron-bridge {text}").reads_routing
        for text in ("", "graphs=router", "graphs=iteration", "capacity=fixed")
    }
    assert reads == {
        "": True,
        "graphs=router": True,
        "graphs=iteration": False,
        "capacity=fixed": False,
    }


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("megatron-core graph=none", "unknown option 'graph'", ""),
        ("megatron-core graphs=none", "megatron-core-0.12 has no option graphs", "tp_overlap"),
        (
            "torchtitan tp_overlap=userbuffers",
            "torchtitan-0.2 cannot have tp_overlap=userbuffers",
            "none or async",
        ),
        ("megatron-core tp_overlap", "is not option=value", "tp_overlap=dgrad"),
        ("megatron-core loss=te loss=native", "option loss is set twice", "loss=te or loss=native"),
        (
            "maxtext tp_overlap=none",
            "maxtext has no option tp_overlap",
            "it has logits_parts, remat",
        ),
    ],
)
def test_what_cannot_be_set(text: str, message: str, hint: str) -> None:
    with pytest.raises(RuntimeModelError, match=message) as caught:
        load_runtime(text)
    assert hint in caught.value.hint


def test_a_later_option_takes_the_place_of_an_earlier_one() -> None:
    once = load_runtime("megatron-core tp_overlap=dgrad loss=te")
    twice = runtime_with_options(once, [("tp_overlap", "none")])
    assert twice.name == "megatron-core-0.12 loss=te tp_overlap=none"
    assert twice == load_runtime(twice.name)
    assert settings(runtime_with_options(twice, once.own)) == settings(
        load_runtime("megatron-core")
    )


def test_options_that_contradict_each_other_are_refused() -> None:
    link = "https://example.org"
    offers = (
        option_offer("loss", "plain", "", stated(link, loss_bytes=52)),
        option_offer("loss", "te", "--te", stated(link, loss_bytes=10)),
        option_offer("kernels", "fused", "", stated(link, loss_bytes=52)),
        option_offer("kernels", "eager", "--eager", stated(link, loss_bytes=99)),
    )
    base = derive(load_runtime("megatron-core"), identity_fields("own"), offers=offers)
    assert default_options(base) == (("kernels", "fused"), ("loss", "plain"))
    with pytest.raises(RuntimeModelError, match="contradicts another one of kernels, loss"):
        runtime_with_options(base, [("loss", "te"), ("kernels", "eager")])
    with pytest.raises(ValueError, match="kernels is none of its values"):
        default_options(
            derive(base, identity_fields("odd"), stated(link, loss_bytes=1), offers=offers)
        )
    with pytest.raises(ValueError, match="has no value quick"):
        option_offer("loss", "quick", "", stated(link, loss_bytes=1))


def test_an_option_that_runs_with_others_alone_says_which() -> None:
    for dispatcher in ("alltoall", "flex", "hybridep"):
        assert load_runtime(
            f"megatron-bridge dispatcher={dispatcher} expert_overlap=on"
        ).expert_overlap
    with pytest.raises(
        RuntimeModelError,
        match="expert_overlap=on with dispatcher=alltoall or flex or hybridep alone, not with",
    ) as caught:
        load_runtime("megatron-bridge expert_overlap=on dispatcher=allgather")
    assert caught.value.hint == "dispatcher=alltoall, or without expert_overlap=on"
    with pytest.raises(RuntimeModelError, match="alone, not with"):
        runtime_with_options(
            load_runtime("megatron-bridge expert_overlap=on"), [("dispatcher", "allgather")]
        )


def test_hybrid_ep_is_asked_for_by_name() -> None:
    assert load_runtime("megatron-core-0.16 dispatcher=hybridep").hybrid_dispatch
    with pytest.raises(RuntimeModelError, match="cannot have dispatcher=hybridep"):
        load_runtime("megatron-core-0.12 dispatcher=hybridep")
    later = runtime_with_options(
        load_runtime("megatron-bridge dispatcher=hybridep"), [("dispatcher", "alltoall")]
    )
    assert later == load_runtime("megatron-bridge dispatcher=alltoall")
    assert not later.hybrid_dispatch


def test_parameters_on_the_host_run_with_zero_3_alone() -> None:
    assert load_runtime("deepspeed param_offload=on").zero_stages == (3,)
    assert runtime_with_options(
        load_runtime("deepspeed-2021 param_offload=on"), [("param_offload", "off")]
    ).zero_stages == (0, 3)
    with pytest.raises(
        RuntimeModelError, match="contradicts another one of bf16_optimizer, param_offload"
    ):
        load_runtime("deepspeed-2022 bf16_optimizer=on param_offload=on")


KERNELS = frozenset(BY_NAME["attention"].values)
OF_NVIDIA = (
    *(("tp_overlap", "userbuffers"), ("dispatcher", "flex"), ("dispatcher", "hybridep")),
    *(("fp8_attention", "on"), ("launch_blocking", "on")),
)
OF_CUDA_AND_ROCM = (
    *(("loss", "te"), ("permute_fusion", "on"), ("collectives", "synthesised")),
    *(("linear_loss", "liger"), ("linear_loss", "cut")),
)


def test_what_is_of_some_vendors_alone_is_in_the_record_of_its_option() -> None:
    found = {
        (option.name, value): vendors
        for option in OPTIONS
        for value, vendors in option.vendors.items()
    }
    expected = {key: {"NVIDIA"} for key in OF_NVIDIA} | {
        key: {"NVIDIA", "AMD"} for key in OF_CUDA_AND_ROCM
    }
    assert found == expected
    assert all(value in BY_NAME[name].values for name, value in found)


@pytest.mark.parametrize("name", runtime_names())
def test_no_runtime_has_what_its_devices_cannot(name: str) -> None:
    """Neither as an offer nor by itself; its facts are those of what it does instead, and nothing
    else changes."""
    for vendor in sorted(VENDORS):
        has_not_what_devices_cannot(name, vendor)


def has_not_what_devices_cannot(name: str, vendor: str) -> None:
    base = load_runtime(name)
    found = restrict_to_devices(base, kernels=KERNELS, called="x", vendors={vendor: "x"})
    unable = {
        (o.option, o.value)
        for o in base.offers
        if vendor not in BY_NAME[o.option].vendors.get(o.value, VENDORS)
    }
    assert {(o.option, o.value) for o in base.offers} - {
        (o.option, o.value) for o in found.offers
    } == unable
    assert not unable & set(found.own)
    assert (found.name, found.options) == (base.name, ())
    assert default_options(found) == found.own
    changed = dict(found.own).items() - dict(base.own).items()
    fields_changed = {field for field in SETTINGS if getattr(found, field) != getattr(base, field)}
    assert fields_changed <= {
        field for o in found.offers if (o.option, o.value) in changed for field, _ in o.values
    }
    if not unable:
        assert found is base
    for option, value in unable:
        with pytest.raises(RuntimeModelError, match=f"x cannot run {option}={value}") as caught:
            restrict_to_devices(
                base, kernels=KERNELS, called="x", vendors={vendor: "x"}, written={option: value}
            )
        left = offered_values(found).get(option, ())
        assert all(one in caught.value.hint for one in left)


def test_userbuffers_give_way_to_the_overlap_before_them() -> None:
    """Where they cannot be, and on a mixture of vendors of which one cannot; a user's own
    accelerator may have all."""
    base = load_runtime("megatron-core")
    assert base.tp_overlap is TpOverlap.FUSED
    for vendors in ({"AMD": "mi300x"}, {"NVIDIA": "h100", "AMD": "mi300x"}):
        assert (
            restrict_to_devices(base, kernels=KERNELS, called="x", vendors=vendors).tp_overlap
            is TpOverlap.DGRAD
        )
    assert restrict_to_devices(base, kernels=KERNELS, called="x", vendors={}) is base
    set_so = load_runtime("megatron-core tp_overlap=none")
    assert (
        restrict_to_devices(
            set_so, kernels=KERNELS, called="x", vendors={"AMD": "mi300x"}
        ).tp_overlap
        is TpOverlap.NONE
    )
