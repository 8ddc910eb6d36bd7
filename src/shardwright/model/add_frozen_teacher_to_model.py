"""Knowledge distillation: a model beside a frozen teacher, with a loss that reads both logits.

Hinton et al. 2015, Distilling the Knowledge in a Neural Network (arXiv 1503.02531), section 2: the
loss is the divergence of the model's words from the teacher's. The teacher's blocks stand before
the model's as runs ``teacher_<run>`` of blocks ``teacher_<block>`` over the sequence ``teacher``
(the text once more). Its final norm and logits are operators ``teacher.*`` of the model's own head,
which reads the teacher's last layer as its memory: logits never cross a border of blocks. Nothing
of the teacher is trained, so it has no gradients, no states of the optimizer and no backward, and
keeps nothing (`model.tensors_without_gradient`).

Left out: losses of inner layers, words that the model makes itself (on-policy), a teacher in other
number formats, and a teacher's modules that predict further tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.errors import ModelError
from shardwright.model.freeze_parameters_or_add_lora import frozen
from shardwright.model.inputs_without_gradient import with_constant_inputs
from shardwright.model.ir.block import INPUT, MEMORY, TEACHER, TEXT, Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.model.ir.tensor_dims import Parameter

OF_BLOCKS: Final = "teacher_"
"""Prefix of the names of the teacher's runs and blocks."""
IN_HEAD: Final = "teacher."
"""Prefix of the teacher's operators and parameters in the model's head."""


def with_teacher(model: Model, teacher: Model) -> Model:
    """Put a frozen teacher before a model, with a loss of both logits; ModelError if unfit.

    Raises:
        ModelError: the model or the teacher has no loss at its end, the teacher reads more than
        text, or the vocabularies differ.
    """
    head, last = _head(model, role="model"), _head(teacher, role="teacher")
    needed_runs = teacher.before(teacher.runs[-1].name)
    runs = [run for run in teacher.runs[:-1] if run.name in needed_runs]
    others = {b.sequence for b in (teacher.blocks[run.block] for run in runs)} | {
        b.memory for b in teacher.blocks if b.memory
    }
    if others - {TEXT}:
        raise ModelError(
            f"the teacher {teacher.name} reads {', '.join(sorted(others - {TEXT}))}",
            hint="a teacher that reads text alone",
        )
    if teacher.vocab != model.vocab:
        raise ModelError(
            f"the teacher {teacher.name} has {teacher.vocab:,} words, the model {model.vocab:,}",
            hint="the loss compares them word by word: a teacher of the same vocabulary",
        )
    used = sorted({run.block for run in runs})
    owners = {
        f"{last.name}.{p.name}": f"{head.name}.{IN_HEAD}{p.name}"
        for o in last.operators
        for p in o.parameters
    }
    blocks = tuple(_teacher_block(teacher.blocks[i], owners) for i in used)
    first = len(blocks)
    before = tuple(
        replace(
            run,
            name=OF_BLOCKS + run.name,
            block=used.index(run.block),
            inputs=tuple(OF_BLOCKS + name for name in run.inputs),
        )
        for run in runs
    )
    model_runs = tuple(replace(run, block=run.block + first) for run in model.runs[:-1])
    source = tuple(OF_BLOCKS + name for name in teacher.runs[-1].inputs)
    end = replace(
        model.runs[-1], block=model.runs[-1].block + first, inputs=(*model.runs[-1].inputs, *source)
    )
    joined = _joint_head(head, last, owners)
    return with_constant_inputs(
        replace(
            model,
            blocks=(*blocks, *(joined if block is head else block for block in model.blocks)),
            runs=(*before, *model_runs, end),
            base=with_teacher(model.base, teacher) if model.base is not None else None,
        )
    )


def _head(model: Model, *, role: str) -> Block:
    """The head block of a model; ModelError (naming `role`) if it ends without a loss over text."""
    head = model.blocks[model.runs[-1].block]
    if head.operators[-1].kind is not OperatorKind.LOSS or head.memory or head.sequence != TEXT:
        raise ModelError(
            f"the {role} {model.name} has no loss over its words at its end",
            hint="a decoder of text",
        )
    return head


def _teacher_block(block: Block, owners: dict[str, str]) -> Block:
    """A block of the teacher, frozen, with names and tied owners under the teacher's prefix."""
    operators = tuple(
        replace(
            frozen(o),
            parameters=tuple(_teacher_parameter(p, "", owners) for p in frozen(o).parameters),
        )
        for o in block.operators
    )
    return replace(
        block, name=OF_BLOCKS + block.name, operators=operators, sequence=TEACHER, constant=()
    )


def _teacher_parameter(parameter: Parameter, prefix: str, owners: dict[str, str]) -> Parameter:
    """A teacher's parameter, frozen, under `prefix`; its owner renamed by `owners` or prefixed."""
    owner = parameter.tied_to and owners.get(parameter.tied_to, OF_BLOCKS + parameter.tied_to)
    return replace(parameter, name=prefix + parameter.name, tied_to=owner)


def _joint_head(head: Block, last: Block, owners: dict[str, str]) -> Block:
    """The model's head with the teacher's frozen head, and a loss that reads both logits."""
    *own, loss = head.operators
    names = {INPUT: MEMORY} | {o.name: IN_HEAD + o.name for o in last.operators}

    def in_head(operator: Operator) -> Operator:
        """Freeze an operator of the teacher's head and rename it for the model's head."""
        found = frozen(operator).reading(names)
        parameters = tuple(_teacher_parameter(p, IN_HEAD, owners) for p in found.parameters)
        return replace(found, name=IN_HEAD + found.name, parameters=parameters)

    *its, its_loss = last.operators
    both = replace(
        loss,
        inputs=(*loss.inputs, *its_loss.reading(names).inputs),
        reads=(*loss.reads, *its_loss.reads),
    )
    return replace(head, operators=(*own, *map(in_head, its), both), memory=TEACHER)
