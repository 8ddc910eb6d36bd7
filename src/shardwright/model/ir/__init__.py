"""The representation of a model: tensors, operators, blocks, the graph and its settings."""
