"""Frameworks that train: their settings, launch files read, and plans written as their files.

A framework has a package of its own (`settings`, `read`, `write`). `launch` and `export` have what
readers and writers share; `documents` and `shell` read the files; `registry` lists all frameworks.
"""
