"""Layouts of tensors on the devices of a stage: cells, boxes and replicas. What runs there is in
program.block.
"""
