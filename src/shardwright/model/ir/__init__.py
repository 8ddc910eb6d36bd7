"""Intermediate representation of a model: tensor dims, operators, blocks, graph and constants."""
