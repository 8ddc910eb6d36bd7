"""torchtitan's configuration in Python, TOML or arguments: read, and written as Python."""
