"""Step times of plans on an emulated cluster: real ranks and messages over shaped links, compute
replaced by waits.

`python -m benchmarks.emulated` from the repository's root, with src on the path; needs root, Linux
and `iproute2`. Not asv's.
"""
