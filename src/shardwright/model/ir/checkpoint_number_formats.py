"""Number format in which a published checkpoint stores its weights."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFormat:
    """Number format of a checkpoint's weights, from its quantization fields.

    Formats are names ("fp8", "int4", ..) of
    `shardwright.job.serving_arrivals_lengths_formats_and_objectives.NumberFormat`.

    Args:
        method: name of the quantisation method ("fp8", "awq", ..).
        weights: number format of the quantised weights; empty if no kernel of that format is
            priced.
        activations: number format that the inputs of quantised layers are cast to.
        cache: number format of keys and values; empty if the configuration leaves it to the engine.
        attention: whether the projections before the attention are quantised.
        output: whether the projection behind the attention is quantised.
        mlp: whether dense feed-forward layers and shared experts are quantised.
        experts: whether routed experts are quantised.
        head: whether the output layer is quantised.
    """

    method: str
    weights: str
    activations: str
    cache: str = ""
    attention: bool = True
    output: bool = True
    mlp: bool = True
    experts: bool = True
    head: bool = False

    def text(self) -> str:
        """Weight format and method as text, such as ``fp8``, ``int4 (awq)``; or only method."""
        if not self.weights:
            return self.method
        return self.weights if self.method == self.weights else f"{self.weights} ({self.method})"
