"""Training frameworks: settings, readers of launch files, and exporters of plans.

A framework has a package of its own (`settings`, `read`, `write`). `launch` and `export` hold the
parts that readers and writers share, `documents` and `shell` parse files, and `registry` lists all
frameworks.
"""
