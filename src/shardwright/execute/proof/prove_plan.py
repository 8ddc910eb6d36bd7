"""Proof that a plan's step has the unsplit model's loss and gradients, on a small model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import isqrt, lcm

import torch

from shardwright.errors import StrategyError
from shardwright.execute.device_state.stored_parameter_parts import Key, seeded
from shardwright.execute.proof.fewer_layers_and_microbatches import num_operators, shorter_step
from shardwright.execute.proof.model_with_divided_widths import narrowest_model
from shardwright.execute.proof.proof_result import PlanProof
from shardwright.execute.proof.short_windows import reach_of, with_short_windows
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    StepResult,
    reference_plan,
    run_step,
    step_differences,
)
from shardwright.execute.training.open_image_arrays_and_cut_patches import (
    has_class_token,
    has_grid,
    patch_operator,
)
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.blocks.vision_tower_and_projector import IMAGE
from shardwright.model.ir.block import TEXT
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import ImageInput, TextRotary
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.layout.equal_weighted_and_zigzag_cuts import indices, largest_remainder
from shardwright.program.stages.stage_segments import StageParts, plan_stages
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.verify.check_structural_plan_rules import require_valid

FEWEST = 8
"""Number of positions of a sequence that nothing cuts."""
MOST_OPERATORS = 20_000_000
"""Maximum number of operators of a step on virtual devices: some hours."""
SHORT_OPERATORS = 20_000
"""Number of operators to which a step is shortened where its plan allows: about half a minute."""


def prove_plan(
    model: Model,
    job: TrainingJob,
    plan: Plan,
    *,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> PlanProof:
    """Compare loss and gradients of `plan` with the undivided model's in float64, at small widths.

    Both have the same parameters and tokens.

    The model keeps its heads and experts, its widths are divided (`narrowest_model`); sequences are
    as short as the plan's cuts allow, and windows and chunks of scans that ended within the long
    ones end within those too (`short_windows`). A step of more than SHORT_OPERATORS has fewer
    layers and microbatches (`shorter_step`). Leaves out: number formats below float64, and
    time.

    Args:
        seed: seed of parameters and tokens.
        progress: called at each phase.

    Raises:
        StrategyError: the plan breaks a rule, has parts that are not executed (execute.*), or is
        too large for one process (execute.size).
    """
    require_valid(plan, model=model, global_batch=job.global_batch)
    report_phase = progress or (lambda phase, done, total: None)
    report_phase("shrink the model", 0, 0)
    model = replace(model, settings=replace(model.settings, router_noise=0.0))
    model, job, plan = shorter_step(model, job, plan, most=SHORT_OPERATORS)
    small = narrowest_model(plan, model=model)
    stages = plan_stages(plan, model=small, unfolded=True)
    count = num_operators((small, job, plan), stages)
    if count > MOST_OPERATORS:
        raise StrategyError(
            f"a step runs {count} operators on {plan.devices} devices, more than {MOST_OPERATORS}"
            " in one process",
            hint="prove the same plan with fewer replicas, microbatches or layers",
            rule="execute.size",
        )
    short = _short_job(job, plan, stages, small)
    reaches = {
        full_sequence.name: reach_of(short_sequence.tokens, whole=full_sequence.tokens)
        for full_sequence, short_sequence in zip(job.sequences, short.sequences, strict=True)
    }
    small = with_short_windows(small, reaches)
    batch = random_batch(small, short, seed=seed)
    source, trace = seeded(small, seed=seed), CommunicationRecord()
    report_phase(
        f"run the unsplit model, then {count:,} operators on {plan.devices} virtual devices", 0, 0
    )
    reference_result = run_step(
        small, short, reference_plan(small, short, plan), batch=batch, source=source
    )
    plan_result = run_step(small, short, plan, batch=batch, source=source, trace=trace)
    moved: dict[str, tuple[int, int]] = {}
    for record in trace.records:
        requests, elements = moved.get(record.kind, (0, 0))
        moved[record.kind] = (requests + 1, elements + record.sent)
    return PlanProof(
        model=small,
        devices=len(plan_result.stores),
        tokens={s.name: s.tokens for s in short.sequences},
        loss=float(plan_result.loss),
        loss_difference=float(plan_result.loss - reference_result.loss),
        gradients=_relative_gradient_differences(small, plan_result, reference_result),
        moved=dict(sorted(moved.items())),
    )


def random_batch(model: Model, job: TrainingJob, *, seed: int) -> dict[str, torch.Tensor]:
    """Random batch: token ids of every sequence, text labels (1 in 8 is -1), and image patches.

    One label in eight is left out of the loss.

    Images are random patches, after zeros for a class token where the model has one. The places of
    image tokens in the text are drawn too.
    """
    generator = torch.Generator().manual_seed(seed)

    def ids(tokens: int) -> torch.Tensor:
        """(samples, tokens) random token ids."""
        return torch.randint(0, model.vocab, (job.global_batch, tokens), generator=generator)

    batch = {s.name: ids(s.tokens) for s in job.sequences}
    labels = ids(job.sequence_length)
    left_out = torch.rand(labels.shape, generator=generator) < 1 / 8
    return _with_images(model, job, batch, generator) | {"labels": labels.masked_fill(left_out, -1)}


def _with_images(
    model: Model, job: TrainingJob, batch: dict[str, torch.Tensor], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """The batch with random patches and places of image tokens, for a model that reads images."""
    image = model.settings.image
    first = patch_operator(model)
    if image is None or first is None:
        return batch
    tokens = batch[IMAGE].shape[1]
    text = batch[TEXT].masked_fill(batch[TEXT] == image.token, (image.token + 1) % model.vocab)
    places = _image_places(
        text, image.written(tokens), generator, in_row=isinstance(model.settings.turns, TextRotary)
    )
    patches = torch.randn(
        (job.global_batch, tokens, first.reads[0].size), generator=generator, dtype=torch.float64
    )
    if has_class_token(first):
        patches[:, 0] = 0.0
    return batch | {TEXT: text.masked_fill(places, image.token), IMAGE: patches}


def _image_places(
    text: torch.Tensor, count: int, generator: torch.Generator, *, in_row: bool
) -> torch.Tensor:
    """(samples, length) True at `count` random places of image tokens; together if `in_row`.

    There are none where the row is longer than a text.
    """
    samples, length = text.shape
    if not in_row:
        return torch.rand(text.shape, generator=generator).argsort(1).argsort(1) < count
    if count > length:
        return torch.zeros_like(text, dtype=torch.bool)
    number = torch.arange(length) - torch.randint(
        0, length - count + 1, (samples, 1), generator=generator
    )
    return (number >= 0) & (number < count)


def _short_job(
    job: TrainingJob, plan: Plan, stages: tuple[tuple[StageParts, ...], ...], model: Model
) -> TrainingJob:
    """The job with sequences as short as the plan's cuts allow.

    If a text is rotated by the rows of its image, it stays long enough for the image.
    """
    lengths = {s.name: _fewest_positions(s, plan, stages, model) for s in job.sequences}
    image = model.settings.image
    if image is not None and isinstance(model.settings.turns, TextRotary):
        while lengths[TEXT] < min(image.written(lengths[IMAGE]), job.sequence_length):
            lengths[TEXT] = min(2 * lengths[TEXT], job.sequence_length)
    return replace(job, sequences=tuple(replace(s, tokens=lengths[s.name]) for s in job.sequences))


def _fewest_positions(
    sequence: SequenceLength, plan: Plan, stages: tuple[tuple[StageParts, ...], ...], model: Model
) -> int:
    """Fewest positions of a sequence at which each device and slice still has some.

    They are a power of two, or, for an image with rows and columns, a square of whole blocks.
    """
    ways = {
        (lane.slices, cell.way(Dim.SEQUENCE))
        for lane, parts in zip(plan.lanes, stages, strict=True)
        for stage in parts
        for segment in stage.segments
        for cells in segment.cells.cells.values()
        for cell in cells.values()
    }
    image = model.settings.image if sequence.name == IMAGE and has_grid(model) else None
    size = 1 if image is None else image.block[0] * image.block[1]
    for length in _candidate_lengths(sequence.tokens, image):
        parts = (
            indices(w, part)
            for slices, w in ways
            for part in (largest_remainder(length, slices) if slices else (length,))
        )
        if all(
            positions and not any(end % size for interval in positions for end in interval)
            for positions in parts
        ):
            return length
    return sequence.tokens


def _candidate_lengths(most: int, image: ImageInput | None) -> Iterator[int]:
    """Iterate over lengths from 8 to below `most`: powers of two, or squares of image blocks."""
    if image is None:
        yield from (FEWEST << i for i in range(most.bit_length()) if FEWEST << i < most)
        return
    side = lcm(*image.block)
    yield from (
        (k * side) ** 2
        for k in range(1, isqrt(most) // side + 1)
        if FEWEST <= (k * side) ** 2 < most
    )


def _relative_gradient_differences(
    model: Model, plan_result: StepResult, reference_result: StepResult
) -> dict[str, float]:
    """By parameter, largest gradient difference / max(own largest, a thousandth of the model's)."""
    (store,) = reference_result.stores.values()
    largest = {
        key: _largest_element(stored.gradient)
        for key, boxes in store.held.items()
        for stored in boxes.values()
    }
    floor = 1e-3 * max(largest.values())
    differences: dict[str, float] = {}
    for key, _, difference in step_differences(plan_result, reference_result):
        name = parameter_name(model, key)
        unit = max(largest[key], floor)
        differences[name] = max(
            differences.get(name, 0.0), difference / unit if difference else 0.0
        )
    return differences


def _largest_element(gradient: torch.Tensor | None) -> float:
    """Largest absolute element of a gradient; 0 without one."""
    return float(gradient.abs().max()) if gradient is not None else 0.0


def parameter_name(model: Model, key: Key) -> str:
    """Text name of a parameter: ``run.layer/parameter``; ``run/parameter`` in a one-layer run."""
    run, layer, _, name = key
    place = model.runs[run]
    return f"{place.name}.{layer}/{name}" if place.count > 1 else f"{place.name}/{name}"
