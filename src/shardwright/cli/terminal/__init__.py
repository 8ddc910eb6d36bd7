"""Output of the command line: screen, progress, exit codes. Screens themselves are in report."""
