"""Classes of parameters that are exempt from weight decay.

Needs no PyTorch.
"""

from __future__ import annotations

from typing import Final

from shardwright.model.ir.tensor_dims import Dim, Parameter, ParameterClass

VECTORS: Final = "vectors"
EMBEDDINGS: Final = "embeddings"
SPARED: Final = {
    VECTORS: "biases, gains of norms and all other parameters with one dimension",
    EMBEDDINGS: "embedding tables of tokens or positions, and heads that are tied to them",
}
"""Words of `AdamW.no_decay`, and their meanings."""


def is_exempt(parameter: Parameter, no_decay: tuple[str, ...]) -> bool:
    """True if weight decay skips the parameter: an embedding or a vector, as `no_decay` says.

    An expert's bias counts as one-dimensional: its experts' dimension is ignored.
    """
    if EMBEDDINGS in no_decay and parameter.klass is ParameterClass.EMBED:
        return True
    of_experts = parameter.klass is ParameterClass.EXPERTS
    return (
        VECTORS in no_decay
        and sum(not (of_experts and extent.dim is Dim.EXPERTS) for extent in parameter.extents) <= 1
    )
