"""Texts of deployments: round trips, and refusals in one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import StrategyError
from shardwright.serving.deployments.deployment_notation import parse_deployment, print_deployment
from shardwright.serving.deployments.worker_pools import Deployment, Worker, WorkerPool, WorkerRole
from tests.tiers import examples

DEGREES = st.sampled_from((1, 2, 3, 4, 8, 16))


@st.composite
def workers(draw: st.DrawFn, *, decodes: bool = False) -> Worker:
    tp, dpa, cp = draw(DEGREES), draw(DEGREES), 1 if decodes else draw(DEGREES)
    stage = tp * dpa * cp
    return Worker(
        tp=tp,
        dpa=dpa,
        cp=cp,
        ep=draw(st.sampled_from([d for d in range(1, stage + 1) if stage % d == 0])),
        pp=draw(DEGREES),
        sequences=draw(st.integers(0, 4096)),
        chunk=draw(st.integers(0, 65536)),
        draft_tokens=draw(st.integers(0, 5)),
        options=draw(st.sampled_from([(), (("kv", "fp8"),), (("block", "64"), ("kv", "fp8"))])),
    )


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    counts = st.integers(1, 100)
    if draw(st.booleans()):
        return Deployment(
            pools=(
                WorkerPool(role=WorkerRole.AGGREGATED, count=draw(counts), worker=draw(workers())),
            )
        )
    first = WorkerPool(role=WorkerRole.PREFILL, count=draw(counts), worker=draw(workers()))
    return Deployment(
        pools=(
            first,
            WorkerPool(
                role=WorkerRole.DECODE, count=draw(counts), worker=draw(workers(decodes=True))
            ),
        )
    )


@examples(100)
@given(deployments())
def test_texts_go_round(deployment: Deployment) -> None:
    assert parse_deployment(print_deployment(deployment)) == deployment


def test_short_forms() -> None:
    assert parse_deployment("tp8") == parse_deployment("agg 1x(tp=8)")
    assert print_deployment(
        parse_deployment("prefill 3x(tp4) decode 2x(mtp3 seqs64 ep8 dpa8)")
    ) == ("prefill 3x(tp4) decode 2x(dpa8 ep8 seqs64 mtp3)")
    assert parse_deployment("prefill 3x(tp4) decode 2x(dpa8 ep8)").devices == 28


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a deployment is 1 to 1000 characters"),
        ("decode tp4", "'agg', or 'prefill' and then 'decode', not decode"),
        ("agg tp2 agg tp2", "not agg and agg"),
        ("agg 4x(tp2", "brackets"),
        ("tp8 tp4", "'tp' is said twice"),
        ("tq8", "unknown word 'tq8'"),
        ("tp0", "'0' is not a whole number of at least 1"),
        ("0x(tp2)", "'0' is not a whole number of at least 1"),
        ("tp3 ep2", "ep 2 does not divide the 3 devices of a stage"),
        ("prefill tp2 decode tp2 cp2", "cp cuts the positions of prompts"),
        ("agg", "agg has no worker"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(StrategyError, match="hint") as refused:
        parse_deployment(text)
    assert message in str(refused.value)
