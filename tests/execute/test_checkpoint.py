"""A checkpoint resumes under any plan with the same bits; what is not whole is refused, and never takes the place of what is."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.multiprocessing as mp

from shardwright.errors import DataError
from shardwright.execute import checkpoint
from shardwright.execute.checkpoint import MANIFEST, Saved, begin, finish, latest, read, resumed, save, write_device
from shardwright.execute.gradients import dims_in_order
from shardwright.execute.parameters import Key, seeded, sliced
from shardwright.execute.train import Member, Training, train
from shardwright.program.layout import Box
from tests.execute.small_plans import PLANS, run_here

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


def _resumed(name: str, found: Saved) -> tuple[Training, dict[int, Member]]:
    small = PLANS[name]
    known = small.known()
    return known, {d: resumed(d, known, found, source=seeded(small.model, seed=1)) for d in known.devices}


def _states(own: Member, known: Training, found: Saved) -> Iterator[tuple[Key, torch.Tensor, torch.Tensor]]:
    """(key, the device's piece of a state, what the checkpoint has of it)."""
    for bucket in (b for b in known.buckets if own.device in b.devices):
        low, high = bucket.sharing(own.device).piece(own.device, bucket.elements, 1)
        for state, tensor in own.states[bucket.number].tensors.items():
            whole = torch.cat([_in_boxes(found, key, state, boxes) for key, boxes in bucket.boxes])
            yield bucket.boxes[0][0], tensor, whole[low:high]


def _in_boxes(found: Saved, key: Key, state: str, boxes: tuple[Box, ...]) -> torch.Tensor:
    whole = found.whole(key, state).permute(dims_in_order(found.model, key))
    return torch.cat([sliced(whole, box).reshape(-1) for box in boxes])


@pytest.mark.parametrize("name", OTHERS)
def test_another_plan_resumes_with_the_same_bits(saved: Path, tmp_path: Path, name: str) -> None:
    """Saved again under the other plan, every parameter and state is what it was; and training goes on alike."""
    found = read(saved, model=PLANS[SAVED].model)
    assert found.step == STEPS
    known, members = _resumed(name, found)
    for own in members.values():
        assert own.steps == STEPS
        for _, mine, theirs in _states(own, known, found):
            assert torch.equal(mine, theirs)
    again = read(save(members, known, tmp_path), model=found.model)
    assert again.shapes == found.shapes
    moved = 0
    for key in found.shapes:
        for state in ("value", "first", "second"):
            assert torch.equal(again.whole(key, state), found.whole(key, state))
        moved += not torch.equal(found.whole(key), seeded(found.model, seed=0)(key))
    assert moved == len(found.shapes), "training had changed every parameter"
    small = PLANS[SAVED]
    alone, _ = run_here(small, small.alone(), steps=STEPS + 1)
    (report,) = train(members, known, [small.batches(STEPS)])
    assert report.step == STEPS + 1
    assert report.loss == pytest.approx(alone[-1].loss, abs=1e-10)


def test_files_are_safetensors_and_hold_every_element_once(saved: Path) -> None:
    model, elements, states = PLANS[SAVED].model, 0, 0
    for path in sorted(saved.glob("*.safetensors")):
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        assert (8 + size) % 8 == 0
        end = max(entry["data_offsets"][1] for entry in header.values())
        assert len(content) == 8 + size + end
        elements += sum(entry["shape"][0] for name, entry in header.items() if name.endswith(".value"))
        states += sum(entry["shape"][0] for name, entry in header.items() if not name.endswith(".value"))
    whole = sum(p.size * run.count for run in model.runs for o in model.blocks[run.block].operators for p in o.parameters if not p.tied_to)
    assert elements == whole
    assert states == 2 * whole


@pytest.mark.parametrize("harm", ["truncated", "altered", "missing", "manifest", "manifest altered"])
def test_what_is_not_whole_is_refused_by_name(copied: Path, harm: str) -> None:
    path = copied / (MANIFEST if "manifest" in harm else "device-00001.safetensors")
    content = bytearray(path.read_bytes())
    if harm == "missing":
        path.unlink()
    elif harm in ("truncated", "manifest"):
        path.write_bytes(content[:-10])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(copied, model=PLANS[SAVED].model)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_model_is_refused(saved: Path) -> None:
    with pytest.raises(DataError, match="is of another model"):
        read(saved, model=PLANS["experts"].model)


def _dies(root: str) -> None:
    """Save step 1, then be killed in the middle of saving step 2."""
    torch.set_num_threads(1)
    small = PLANS["hidden"]
    known = small.known()
    members = small.members(known)
    train(members, known, [small.batches(0)])
    save(members, known, Path(root))
    train(members, known, [small.batches(1)])
    folder = begin(Path(root), 2)
    write_device(members[0], known, folder)
    original = os.fsync

    def killed(descriptor: int) -> None:
        original(descriptor)
        os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.os.fsync = killed  # type: ignore[attr-defined, assignment]
    finish(folder, [write_device(members[1], known, folder)], known, step=2)


def test_a_kill_while_saving_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    process = mp.get_context("spawn").Process(target=_dies, args=(str(tmp_path),), daemon=True)
    process.start()
    process.join(240)
    assert process.exitcode == -signal.SIGKILL
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == [".step-00000002.unfinished"]
    newest = latest(tmp_path)
    assert newest == tmp_path / "step-00000001"
    small = PLANS["hidden"]
    known, members = _resumed("hidden", read(newest, model=small.model))
    (report,) = train(members, known, [small.batches(1)])
    alone, straight = run_here(small, known, steps=2)
    assert report == alone[-1]
    finished = save(members, known, tmp_path)
    assert latest(tmp_path) == finished
    assert not list(tmp_path.glob(".*"))
    two, same = read(finished, model=small.model), read(save(straight, known, tmp_path / "straight"), model=small.model)
    assert all(torch.equal(two.whole(key, state), same.whole(key, state)) for key in two.shapes for state in ("value", "first", "second"))


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    assert latest(tmp_path / "nowhere") is None
