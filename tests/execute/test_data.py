"""Batches from files of tokens, and what is refused before the first step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from math import log
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from shardwright.errors import DataError
from shardwright.execute.checkpoints.draw_initial_parameter_values import InitialValues
from shardwright.execute.training import write_and_open_token_files as token_files
from shardwright.execute.training.adamw_optimizer import AdamW
from shardwright.execute.training.byte_tokenizer import (
    BEGIN,
    END,
    VOCABULARY,
    encode,
    tokenise,
    tokenise_shipped,
)
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    single_device_plan,
)
from shardwright.execute.training.device_training_state import create_device_state, prepare_training
from shardwright.execute.training.token_batches import open_tokens, permuted_position
from shardwright.execute.training.write_and_open_token_files import description_path, write_tokens
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.model_graph import Model
from tests.execute.decoded import decode
from tests.execute.small_plans import PLANS
from tests.execute.trained import train


def _job(*, samples: int = 2, tokens: int = 4, encoder: int = 0) -> TrainingJob:
    sequences = (SequenceLength(name="text", tokens=tokens),)
    return TrainingJob(
        sequences=(*sequences, SequenceLength(name="encoder", tokens=encoder))
        if encoder
        else sequences,
        global_batch=samples,
    )


def _model(vocab: int = 64) -> Model:
    model = PLANS["tp"].model
    assert model.vocab == 64
    if vocab == model.vocab:
        return model
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "max_position_embeddings": 64,
    }
    return model_from_config(
        {"architectures": ["LlamaForCausalLM"], "vocab_size": vocab, **sizes}, name="small"
    )


def test_a_file_gives_windows_by_step(tmp_path: Path) -> None:
    path = tmp_path / "text.npy"
    write_tokens(path, np.arange(23) % 64, vocabulary=64)
    assert np.load(path).dtype == np.uint8
    batches = open_tokens(path, model=_model(), job=_job())
    assert batches.windows == 5
    assert batches.batch(1)["text"].tolist() == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert batches.batch(1)["labels"].tolist() == [[9, 10, 11, 12], [13, 14, 15, 16]]
    assert batches.batch(2)["text"].tolist() == [[16, 17, 18, 19], [0, 1, 2, 3]]
    assert batches.passes(5) == 2.0


def test_a_pass_in_any_order_reads_every_window_once(tmp_path: Path) -> None:
    path = tmp_path / "text.npy"
    write_tokens(path, np.arange(4 * 15 + 1), vocabulary=64)
    batches = open_tokens(path, model=_model(), job=_job(samples=3), seed=9)
    passes = [
        [k for step in range(5 * turn, 5 * turn + 5) for k in batches.order(step)]
        for turn in range(3)
    ]
    assert all(sorted(one) == list(range(15)) for one in passes)
    assert passes[0] != passes[1]
    assert passes[1] != list(range(15))
    other = open_tokens(path, model=_model(), job=_job(samples=3), seed=10)
    assert other.order(0) != batches.order(0)
    # Going on from a step needs no earlier one.
    assert (
        open_tokens(path, model=_model(), job=_job(samples=3), seed=9).batch(7)["text"].tolist()
        == batches.batch(7)["text"].tolist()
    )
    assert batches.batch(7)["text"].tolist() == [
        list(range(4 * k, 4 * k + 4)) for k in batches.order(7)
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 1000])
def test_shuffling_is_a_permutation(count: int) -> None:
    found = [permuted_position(i, count, seed=(1, 2)) for i in range(count)]
    assert sorted(found) == list(range(count))
    if count > 100:
        # Of a random permutation about one place stays where it is, and half of all neighbours
        # ascend.
        assert sum(i == k for i, k in enumerate(found)) < 10
        assert 400 < sum(a < b for a, b in pairwise(found)) < 600


def test_several_sequences_go_together(tmp_path: Path) -> None:
    files = {"text": tmp_path / "text.npy", "encoder": tmp_path / "encoder.npy"}
    write_tokens(files["text"], np.arange(21), vocabulary=64)
    write_tokens(files["encoder"], np.arange(20) + 30, vocabulary=64)
    batches = open_tokens(files, model=_model(), job=_job(encoder=5), seed=1)
    assert batches.windows == 4
    for step in range(4):
        batch = batches.batch(step)
        assert batch["encoder"].shape == (2, 5)
        for text, encoder in zip(batch["text"].tolist(), batch["encoder"].tolist(), strict=True):
            assert encoder == [30 + text[0] // 4 * 5 + i for i in range(5)]


def _refused(
    files: Path | Mapping[str, Path], *, model: Model | None = None, job: TrainingJob | None = None
) -> str:
    with pytest.raises(DataError) as caught:
        open_tokens(files, model=model or _model(), job=job or _job())
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return str(caught.value)


def test_unusable_data_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text.npy"

    def refused(tokens: np.ndarray | bytes) -> str:
        if isinstance(tokens, bytes):
            path.write_bytes(tokens)
        else:
            np.save(path, tokens)
        said = _refused(path)
        assert str(path) in said
        return said

    assert "no such file" in _refused(path)
    good = np.arange(20, dtype=np.uint16)
    assert "has 8 tokens, a batch needs 9 (2 x 4 of text)" in refused(good[:8])
    monkeypatch.setattr(token_files, "CHUNK", 5)
    outside = good.copy()
    outside[[13, 17]] = 64
    assert "token 64 at 13 is outside the vocabulary of 64" in refused(outside)
    assert "token -1 at 0 is outside" in refused(np.full(9, -1))
    assert "2 dims of uint16" in refused(good.reshape(4, 5))
    assert "1 dims of float64" in refused(good.astype(float))
    assert "not a whole file of tokens" in refused(b"some text")
    np.save(path, good)
    assert "not a whole file of tokens" in refused(path.read_bytes()[:-1])
    np.save(path, good)
    assert open_tokens(path, model=_model(), job=_job()).windows == 4


def test_processes_divide_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_files, "CHUNK", 5)
    tokens = np.arange(20)
    tokens[13] = 64
    np.save(tmp_path / "text.npy", tokens)
    found = []
    for rank in range(2):
        try:
            open_tokens(tmp_path / "text.npy", model=_model(), job=_job(), share=(rank, 2))
        except DataError:
            found.append(rank)
    assert found == [0]


def test_sequences_without_a_file_and_files_without_a_sequence_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.npy"
    write_tokens(path, np.arange(20), vocabulary=64)
    assert "no file has the sequence encoder" in _refused(path, job=_job(encoder=5))
    assert "the job has no sequence encoder" in _refused({"text": path, "encoder": path})
    short = tmp_path / "short.npy"
    write_tokens(short, np.arange(9), vocabulary=64)
    assert "short.npy has 9 tokens, a batch needs 10 (2 x 5 of encoder)" in _refused(
        {"text": path, "encoder": short}, job=_job(encoder=5)
    )


def test_the_description_must_fit_file_and_model(tmp_path: Path) -> None:
    path = tmp_path / "text.npy"
    write_tokens(path, np.arange(20), vocabulary=300)
    assert np.load(path).dtype == np.uint16
    assert "was made with a vocabulary of 300, the model has 64" in _refused(path)
    assert open_tokens(path, model=_model(300), job=_job()).windows == 4
    np.save(path, np.arange(20, dtype=np.uint32))
    assert "has 20 tokens of uint32, text.npy.json says 20 of uint16" in _refused(
        path, model=_model(300)
    )
    description_path(path).write_text(json.dumps({"dtype": "uint32"}))
    assert "does not describe a file of tokens" in _refused(path)
    with pytest.raises(DataError, match="token 19 at 19 is outside the vocabulary of 19"):
        write_tokens(path, np.arange(20), vocabulary=19)
    with pytest.raises(DataError, match="cannot be written"):
        write_tokens(tmp_path / "nowhere" / "text.npy", np.arange(20), vocabulary=64)


def test_bytes_are_tokens(tmp_path: Path) -> None:
    text = "Hafen, \N{LATIN SMALL LETTER U WITH DIAERESIS}ber \N{SNOWMAN}\n"
    tokens = encode(text)
    assert tokens[0] == BEGIN
    assert tokens[-1] == END
    assert len(tokens) == len(text.encode()) + 2
    assert decode(tokens.tolist()) == text
    one, other, out = tmp_path / "one.txt", tmp_path / "other.txt", tmp_path / "tokens.npy"
    one.write_text(text)
    other.write_text("abc")
    assert tokenise([one, other], out) == len(tokens) + 5
    assert np.load(out).tolist() == [*tokens.tolist(), BEGIN, 97, 98, 99, END]
    assert json.loads(description_path(out).read_text()) == {
        "tokenizer": "bytes",
        "vocabulary": VOCABULARY,
        "dtype": "uint16",
        "tokens": len(tokens) + 5,
    }
    other.write_text("")
    with pytest.raises(DataError, match=r"other\.txt is empty"):
        tokenise(other, out)
    with pytest.raises(DataError, match="No such file"):
        tokenise(tmp_path / "none.txt", out)
    with pytest.raises(DataError, match="no text"):
        tokenise([], out)


def test_a_text_is_shipped(tmp_path: Path) -> None:
    path = tmp_path / "shipped.npy"
    count = tokenise_shipped(path)
    assert 20_000 < count < 50_000
    row = np.load(path)
    assert decode(row.tolist()).startswith("The Harbour at Low Water")
    assert "was made with a vocabulary of 258, the model has 64" in _refused(path)
    batches = open_tokens(path, model=_model(VOCABULARY), job=_job(samples=4, tokens=64))
    assert batches.windows == (count - 1) // 64


def test_a_small_model_learns_the_shipped_text(tmp_path: Path) -> None:
    """From random weights, a tokenised file and a plan: the loss falls from that of guessing."""
    path, model, job = tmp_path / "shipped.npy", _model(VOCABULARY), _job(samples=8, tokens=32)
    tokenise_shipped(path)
    batches = open_tokens(path, model=model, job=job, seed=0)
    known = prepare_training(model, job, single_device_plan(model, job), rule=AdamW(rate=1e-2))
    members = {
        d: create_device_state(
            d, known, source=InitialValues(model=model, seed=0, dtype=torch.float64)
        )
        for d in known.devices
    }
    losses = [r.loss for r in train(members, known, map(batches.batch, range(40)))]
    assert losses[0] == pytest.approx(log(VOCABULARY), abs=0.1)
    shares = np.bincount(np.load(path)) / len(np.load(path))
    entropy = -sum(s * log(s) for s in shares if s)
    assert sum(losses[-5:]) / 5 < entropy - 0.1, "it knows more than how often each byte comes"
