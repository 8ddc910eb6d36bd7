"""The verbs of the command line as functions; each module loads only what its verb needs."""
