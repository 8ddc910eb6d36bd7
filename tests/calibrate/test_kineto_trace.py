"""Kineto traces; the samples are written here."""

import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.calibrate.kineto_trace import (
    kernel_class,
    parse_kineto,
    read_kineto,
    shortest_calls,
)
from shardwright.errors import DataError, ShardwrightError
from tests.tiers import examples


def event(
    name: str, dur: float, *, cat: str = "kernel", ph: str = "X", **args: Any
) -> dict[str, Any]:
    return {
        "ph": ph,
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": 1.0,
        "dur": dur,
        "args": args,
    }


CALL = {
    "Collective name": "_allgather_base",
    "In msg nelems": 1000,
    "Out msg nelems": 4000,
    "Group size": 4,
    "dtype": "BFloat16",
}
EVENTS = [
    event("aten::mm", 500.0, cat="cpu_op"),
    event("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", 100.0),
    event("void cutlass::device_kernel<flash::FlashAttnFwdSm90<...>>", 50.0),
    event("void at::native::vectorized_elementwise_kernel<4, add>", 20.0),
    event("Memcpy HtoD (Pinned -> Device)", 5.0, cat="gpu_memcpy", bytes=4000),
    event("Memset (Device)", 1.0, cat="gpu_memset"),
    event("some_unknown_kernel", 2.0),
    event("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 40.0, **CALL),
    event("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 30.0, **CALL),
    event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 60.0, **{"External id": 7}),
    event(
        "record_param_comms",
        3.0,
        cat="cpu_op",
        **(CALL | {"External id": 7, "Collective name": "allreduce", "In msg nelems": 4000}),
    ),
    event("ncclDevKernel_SendRecv", 9.0),
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
    {"ph": "f", "cat": "ac2g", "id": 5},
]
DOCUMENT = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "Some GPU", "totalGlobalMem": 42 * 10**9}],
    "traceEvents": EVENTS,
}


def test_kernels_by_class_and_collectives_with_their_size() -> None:
    trace = parse_kineto(json.dumps(DOCUMENT))
    assert {k.kind: (pytest.approx(k.seconds * 1e6), k.calls) for k in trace.kernels} == {
        "nccl": (139.0, 4),
        "gemm": (100.0, 1),
        "attention": (50.0, 1),
        "elementwise": (20.0, 1),
        "memcpy": (6.0, 2),
        "other": (2.0, 1),
    }
    assert trace.kernels[0].kind == "nccl"
    assert (trace.device_name, trace.memory_bytes, trace.unsized) == ("Some GPU", 42 * 10**9, 1)
    assert shortest_calls(trace.collectives) == {
        ("all_gather", 4): ((8000, pytest.approx(30e-6)),),
        ("all_reduce", 4): ((8000, pytest.approx(60e-6)),),
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x64", "gemm"),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", "gemm"),
        ("void cudnn::fusion::fmha_cutlassF_bf16", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma", "attention"),
        ("triton_poi_fused_add_mul_silu_3", "elementwise"),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdam>",
            "elementwise",
        ),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "nccl"),
    ],
)
def test_names(name: str, kind: str) -> None:
    assert kernel_class(event(name, 1.0)) == kind
    assert (
        kernel_class(event(name, 1.0, cat="cpu_op")) == kernel_class(event(name, 1.0, ph="i")) == ""
    )


def test_files_packed_or_not(tmp_path: Path) -> None:
    plain, packed, broken = tmp_path / "a.json", tmp_path / "a.json.gz", tmp_path / "b.gz"
    plain.write_text(json.dumps(EVENTS))
    packed.write_bytes(gzip.compress(json.dumps(EVENTS).encode()))
    assert read_kineto(plain) == read_kineto(packed)
    broken.write_bytes(packed.read_bytes()[:-20])
    for path in (broken, tmp_path / "none.json", tmp_path):
        with pytest.raises(DataError, match="cannot read trace"):
            read_kineto(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "no traceEvents"),
        ("3", "no traceEvents"),
        ('{"traceEvents": []}', "holds no kernel"),
        (json.dumps([event("aten::mm", 5.0, cat="cpu_op")]), "holds no kernel"),
        (json.dumps([event("gemm", -1.0)]), "holds no kernel"),
    ],
)
def test_what_cannot_be_used(text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        parse_kineto(text)


values = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["kernel", "X", "ncclKernel", "allreduce", "Float", "7"])
)
keys = [
    "ph",
    "cat",
    "name",
    "dur",
    "args",
    "Collective name",
    "In msg nelems",
    "Group size",
    "dtype",
    "External id",
    "traceEvents",
]
objects = st.dictionaries(
    st.sampled_from(keys),
    values | st.dictionaries(st.sampled_from(keys), values, max_size=6),
    max_size=8,
)


@examples(25, 500)
@given(
    changed=st.lists(st.tuples(st.sampled_from(EVENTS), objects), max_size=6),
    loose=st.lists(values | objects, max_size=4),
    devices=values | st.lists(values | objects, max_size=2),
)
def test_any_json_is_a_trace_or_an_error_of_the_project(
    changed: list[tuple[dict[str, Any], dict[str, Any]]], loose: list[Any], devices: Any
) -> None:
    document = {
        "traceEvents": [one | other for one, other in changed] + loose,
        "deviceProperties": devices,
    }
    with suppress(ShardwrightError):
        trace = parse_kineto(json.dumps(document))
        assert all(k.seconds > 0 and k.calls > 0 for k in trace.kernels)
        assert all(c.volume > 0 and c.num_devices > 1 for c in trace.collectives)


@examples(25, 500)
@given(st.text(max_size=30))
def test_any_text(text: str) -> None:
    with pytest.raises(DataError):
        parse_kineto(text)
