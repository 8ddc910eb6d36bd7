"""Training frameworks as facts that the cost model reads.

Releases are in runtime.releases, serving engines in runtime.serving_engines.
"""
