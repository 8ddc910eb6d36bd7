"""Layouts of tensors on the devices of a stage: cells, boxes and replicas.

The kernels of these devices are in program.block.
"""
