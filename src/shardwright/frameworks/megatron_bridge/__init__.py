"""Megatron-Bridge's overrides and recipes, read, and its Python module, written."""
