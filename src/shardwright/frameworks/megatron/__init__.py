"""Megatron-LM's arguments: settings, releases, reader and exporter.

Frameworks on Megatron-Core stand beside this package: they have the same arguments under other
names.
"""
