"""A checkpoint resumes under any plan with the same bits; what is not whole is refused, and never
takes the place of what is."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from shardwright.errors import DataError
from shardwright.execute.checkpoints import read_checkpoint as reading
from shardwright.execute.checkpoints.checkpoint_tensor_names_and_file_digests import (
    METADATA,
    tensor_name,
)
from shardwright.execute.checkpoints.find_finished_checkpoints import MANIFEST, newest_checkpoint
from shardwright.execute.checkpoints.read_checkpoint import SavedCheckpoint, read_checkpoint
from shardwright.execute.checkpoints.resume_device_state import resume_device
from shardwright.execute.checkpoints.torch_checkpoint_planners import CheckpointPiece
from shardwright.execute.checkpoints.write_checkpoint import (
    begin_checkpoint,
    finish_checkpoint,
    write_device,
)
from shardwright.execute.device_state.stored_parameter_parts import Key, box_slice, seeded
from shardwright.execute.device_state.views_of_flat_ranges_as_boxes import box_views
from shardwright.execute.numerics.base.run_precision import precision_of
from shardwright.execute.training.device_training_state import (
    DeviceState,
    PreparedTraining,
    create_device_state,
    prepare_training,
)
from shardwright.model.ir.operator import Operator
from shardwright.program.layout.tensor_layout import Box
from tests.execute.saved import save
from tests.execute.small_plans import PLANS, RULE, alone_reports, run_here
from tests.execute.started import started
from tests.execute.trained import train
from tests.tiers import chosen, examples

SAVED = "hybrid zero-3"
OTHERS = ("tp2 then dp2", "two lanes", "zero-3", "vocabulary")
STEPS = 2


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = PLANS[SAVED]
    known = small.known()
    _, members = run_here(small, known, steps=STEPS)
    return save(members, known, tmp_path_factory.mktemp("run"))


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    """The checkpoint, to be harmed."""
    return Path(shutil.copytree(saved, tmp_path / saved.name))


def _resumed(name: str, found: SavedCheckpoint) -> tuple[PreparedTraining, dict[int, DeviceState]]:
    small = PLANS[name]
    known = small.known()
    return known, {
        d: resume_device(d, known, found, source=seeded(small.model, seed=1)) for d in known.devices
    }


def _states(
    own: DeviceState, known: PreparedTraining, found: SavedCheckpoint
) -> Iterator[tuple[Key, torch.Tensor, torch.Tensor]]:
    """(key, the device's piece of a state, what the checkpoint has of it)."""
    for bucket in (b for b in known.buckets if own.device in b.devices):
        low, high = bucket.sharing(own.device).piece(own.device, bucket.elements, 1)
        for state, tensor in own.states[bucket.number].tensors.items():
            whole = torch.cat([_in_boxes(found, key, state, boxes) for key, boxes in bucket.boxes])
            yield bucket.boxes[0][0], tensor, whole[low:high]


def _in_boxes(found: SavedCheckpoint, key: Key, state: str, boxes: tuple[Box, ...]) -> torch.Tensor:
    whole = found.whole(key, state)
    return torch.cat([box_slice(whole, box).reshape(-1) for box in boxes])


@pytest.mark.parametrize("name", chosen(OTHERS, ("two lanes", "vocabulary")))
def test_another_plan_resumes_with_the_same_bits(saved: Path, tmp_path: Path, name: str) -> None:
    """Saved again under the other plan, every parameter and state is what it was; and training goes
    on alike."""
    found = read_checkpoint(saved, model=PLANS[SAVED].model)
    assert found.step == STEPS
    known, members = _resumed(name, found)
    for own in members.values():
        assert own.steps == STEPS
        for _, mine, theirs in _states(own, known, found):
            assert torch.equal(mine, theirs)
    again = read_checkpoint(save(members, known, tmp_path), model=found.model)
    assert again.shapes == found.shapes
    moved = 0
    for key in found.shapes:
        for state in ("value", "first", "second"):
            assert torch.equal(again.whole(key, state), found.whole(key, state))
        moved += not torch.equal(found.whole(key), seeded(found.model, seed=0)(key))
    assert moved == len(found.shapes), "training had changed every parameter"
    small = PLANS[SAVED]
    alone = alone_reports(small, steps=STEPS + 1)
    (report,) = train(members, known, [small.batches(STEPS)])
    assert report.step == STEPS + 1
    assert report.loss == pytest.approx(alone[-1].loss, abs=1e-10)


def test_a_model_that_computes_something_else_does_not_resume(saved: Path) -> None:
    """Shapes of parameters do not tell heads, nor the numbers of norms and positions."""
    model = PLANS[SAVED].model
    (width,) = {
        o.attention.head_dim for b in model.blocks for o in b.operators if o.attention is not None
    }
    twice = tuple(
        replace(b, operators=tuple(_with_half_heads(o) for o in b.operators)) for b in model.blocks
    )
    with pytest.raises(
        DataError, match=rf"core.attention.head_dim = {width}, this one with {2 * width} "
    ):
        read_checkpoint(saved, model=replace(model, blocks=twice))
    with pytest.raises(DataError, match=r"settings.eps = 1e-05, this one with 1e-06"):
        read_checkpoint(saved, model=model, settings=replace(model.settings, eps=1e-6))


def _with_half_heads(operator: Operator) -> Operator:
    shape = operator.attention
    if shape is None:
        return operator
    fewer = replace(
        shape,
        heads=shape.heads // 2,
        kv_heads=shape.kv_heads // 2,
        head_dim=2 * shape.head_dim,
        value_dim=2 * shape.value_dim,
    )
    return replace(operator, attention=fewer)


def test_any_reader_of_the_format_opens_it(saved: Path, tmp_path: Path) -> None:
    """torch's own conversion and loading, which know nothing of us, find every parameter and state
    whole; and each element once."""
    found = read_checkpoint(saved, model=PLANS[SAVED].model)
    dcp_to_torch_save(saved, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert set(whole) == {
        tensor_name(found.model, key, state)
        for key in found.shapes
        for state in ("value", "first", "second")
    }
    for key in found.shapes:
        for state in ("value", "first", "second"):
            assert torch.equal(whole[tensor_name(found.model, key, state)], found.whole(key, state))
    state_dict = {
        "model.embed.0.embed.weight": torch.zeros_like(whole["model.embed.0.embed.weight"])
    }
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(state_dict, storage_reader=dcp.FileSystemReader(saved), no_dist=True)
    assert torch.equal(
        state_dict["model.embed.0.embed.weight"], whole["model.embed.0.embed.weight"]
    )
    elements = sum(
        p.size * r.count
        for r in found.model.runs
        for o in found.model.blocks[r.block].operators
        for p in o.parameters
    )
    chunks = [
        chunk for entry in found.metadata.state_dict_metadata.values() for chunk in entry.chunks
    ]
    assert sum(torch.Size(chunk.sizes).numel() for chunk in chunks) == 3 * elements
    assert (
        sum(torch.Size(entry.size).numel() for entry in found.metadata.state_dict_metadata.values())
        == 3 * elements
    )


def test_a_device_reads_what_it_holds(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every element that a device asks for is one that it keeps."""
    small = PLANS["tp2 then dp2"]
    known, asked = small.known(), []
    original = reading.read_pieces

    def counted(pieces: list[CheckpointPiece], *others: object) -> None:
        asked.extend(pieces)
        original(pieces, *others)

    monkeypatch.setattr(reading, "read_pieces", counted)
    own = resume_device(
        0, known, read_checkpoint(saved, model=small.model), source=seeded(small.model, seed=1)
    )
    held = sum(h.value.numel() for boxes in own.store.held.values() for h in boxes.values())
    states = sum(t.numel() for s in own.states.values() for t in s.tensors.values())
    assert sum(piece.values.numel() for piece in asked) == held + states
    whole = sum(
        p.size * r.count
        for r in small.model.runs
        for o in small.model.blocks[r.block].operators
        for p in o.parameters
    )
    assert held < 0.5 * whole


@given(st.data())
@examples(25, 1000)
def test_views_of_boxes_cover_a_range_in_its_order(data: st.DataObject) -> None:
    """Against the plain listing of indices: any boxes with gaps, any range of them."""

    def indices() -> tuple[tuple[int, int], ...]:
        ends = sorted(data.draw(st.sets(st.integers(0, 9), min_size=2, max_size=6)))
        return tuple(zip(ends[::2], ends[1::2], strict=False))

    boxes = tuple(tuple(indices() for _ in range(2)) for _ in range(data.draw(st.integers(1, 3))))
    listed = [
        place
        for box in boxes
        for place in itertools.product(*([i for a, b in dim for i in range(a, b)] for dim in box))
    ]
    low = data.draw(st.integers(0, len(listed)))
    high = data.draw(st.integers(low, len(listed)))
    flat = torch.arange(low, high)
    seen = {}
    for box, view in box_views(flat, boxes, low=low):
        assert tuple(view.shape) == tuple(b - a for a, b in box)
        for place in itertools.product(*(range(a, b) for a, b in box)):
            seen[int(view[tuple(i - a for i, (a, _) in zip(place, box, strict=True))])] = place
    assert seen == dict(enumerate(listed[low:high], start=low))


def test_formats_of_a_job_are_kept_and_master_copies_found(saved: Path, tmp_path: Path) -> None:
    """bf16 with copies in fp32, under two plans; and begun from a checkpoint in float64, which has
    no copies."""

    def begun(
        name: str, source: SavedCheckpoint | None
    ) -> tuple[PreparedTraining, dict[int, DeviceState]]:
        small = PLANS[name]
        known = prepare_training(
            small.model, small.job, small.plan, rule=RULE, precision=precision_of(small.job)
        )
        first = seeded(small.model, seed=0)
        return known, {
            d: create_device_state(d, known, source=first)
            if source is None
            else resume_device(d, known, source, source=first)
            for d in known.devices
        }

    model = PLANS[SAVED].model
    known, members = begun(SAVED, None)
    train(members, known, [PLANS[SAVED].batches(0)])
    one = read_checkpoint(save(members, known, tmp_path / "one"), model=model)
    other_known, others = begun("tp2 then dp2", one)
    two = read_checkpoint(save(others, other_known, tmp_path / "two"), model=model)
    for key in one.shapes:
        assert one.whole(key).dtype == torch.bfloat16
        for state in ("value", "first", "second", "master"):
            assert torch.equal(one.whole(key, state), two.whole(key, state))
        assert torch.equal(one.whole(key, "master").bfloat16(), one.whole(key))
        assert not torch.equal(one.whole(key, "master"), one.whole(key).float())
    exact = read_checkpoint(saved, model=model)
    coarse_known, coarse = begun("two lanes", exact)
    three = read_checkpoint(save(coarse, coarse_known, tmp_path / "three"), model=model)
    assert all(
        torch.equal(three.whole(key, "master"), exact.whole(key).float()) for key in exact.shapes
    )


@pytest.mark.parametrize(
    "harm", ["truncated", "altered", "missing", "manifest", "manifest altered", "metadata altered"]
)
def test_what_is_not_whole_is_refused_by_name(copied: Path, harm: str) -> None:
    path = copied / (
        MANIFEST if "manifest" in harm else METADATA if "metadata" in harm else "__1_0.distcp"
    )
    content = bytearray(path.read_bytes())
    if harm == "missing":
        path.unlink()
    elif harm in ("truncated", "manifest"):
        path.write_bytes(content[:-10])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_checkpoint(copied, model=PLANS[SAVED].model)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_model_is_refused(saved: Path) -> None:
    with pytest.raises(DataError, match="is of another model"):
        read_checkpoint(saved, model=PLANS["experts"].model)


def _dies(rank: int, root: str, after: int) -> None:
    """Save step 1, then be killed in the middle of saving step 2, when so many files or folders
    have been put on disk."""
    torch.set_num_threads(1)
    small = PLANS["hidden"]
    known = small.known()
    members = small.members(known)
    train(members, known, [small.batches(0)])
    save(members, known, Path(root))
    train(members, known, [small.batches(1)])
    folder = begin_checkpoint(Path(root), 2)
    write_device(members[0], known, folder)
    original, done = os.fsync, itertools.count(1)

    def killed(descriptor: int) -> None:
        original(descriptor)
        if next(done) == after:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = killed  # type: ignore[assignment]
    finish_checkpoint(folder, [write_device(members[1], known, folder)], known, step=2)


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(1, id="a device's file", marks=pytest.mark.proof),
        pytest.param(4, id="all files"),
    ],
)
def test_a_kill_while_saving_leaves_the_previous_checkpoint(tmp_path: Path, after: int) -> None:
    (process,) = started(_dies, ranks=1, arguments=(str(tmp_path), after))
    process.join(240)
    assert process.exitcode == -signal.SIGKILL
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == [
        ".step-00000002.unfinished"
    ]
    newest = newest_checkpoint(tmp_path)
    assert newest == tmp_path / "step-00000001"
    small = PLANS["hidden"]
    known, members = _resumed("hidden", read_checkpoint(newest, model=small.model))
    (report,) = train(members, known, [small.batches(1)])
    alone, straight = run_here(small, known, steps=2)
    assert report == alone[-1]
    finished = save(members, known, tmp_path)
    assert newest_checkpoint(tmp_path) == finished
    assert not list(tmp_path.glob(".*"))
    two, same = (
        read_checkpoint(finished, model=small.model),
        read_checkpoint(save(straight, known, tmp_path / "straight"), model=small.model),
    )
    assert all(
        torch.equal(two.whole(key, state), same.whole(key, state))
        for key in two.shapes
        for state in ("value", "first", "second")
    )


def test_a_kill_while_replacing_a_checkpoint_leaves_the_one_before(
    saved: Path, copied: Path
) -> None:
    before = copied.parent / f".{copied.name}.before"
    copied.rename(before)
    assert newest_checkpoint(before.parent) == before
    found = read_checkpoint(before, model=PLANS[SAVED].model)
    assert found.step == STEPS
    shutil.copytree(saved, copied)
    assert newest_checkpoint(before.parent) == copied


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "nowhere") is None
