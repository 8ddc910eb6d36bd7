"""Words of the command line to arguments: options that verbs share, counts, help."""
