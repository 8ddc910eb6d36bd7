"""Plans of a mixed cluster: composed from pipelines, written out, simulated and compared."""
