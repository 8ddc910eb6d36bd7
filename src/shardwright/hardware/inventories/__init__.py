"""A cluster from the outputs of Slurm, Kubernetes, NCCL and nvidia-smi.

Their formats are in hardware.inventories.outputs.
"""
