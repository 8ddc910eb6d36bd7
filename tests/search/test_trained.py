"""Searches for plans of models of which only a part is trained: the certificate holds, and the answer says what is saved."""

from __future__ import annotations

import pytest

from shardwright.api.grids import check, plan
from shardwright.search.request import Request


@pytest.mark.parametrize("train", ["lora:r16", "frozen:mlp,embed"])
def test_the_certificate_of_a_partly_trained_model_holds(train: str) -> None:
    request = Request(model="llama-3.2-1b", cluster="h100-sxm:4", seq_len=4096, global_batch=16, train=train, top=1)
    answer = plan(request)
    assert answer.certificate.optimal
    assert answer.request is not None
    assert check(answer.request, answer).leaves > 100
    found = answer.prediction
    assert found.model.trainable < found.model.parameters
    assert found.full_bytes > found.reserved_bytes
