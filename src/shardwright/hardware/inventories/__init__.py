"""Cluster files made from the outputs of Slurm, Kubernetes, NCCL and nvidia-smi.

Readers of each output are in hardware.inventories.outputs.
"""
