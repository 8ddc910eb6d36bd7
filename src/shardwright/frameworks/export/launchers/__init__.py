"""Files that start an export on a cluster: Slurm, Kubernetes, SkyPilot."""
