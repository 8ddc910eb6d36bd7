"""Parsing of the command line: options that verbs share, token counts, help."""
