"""The verbs of the command line as functions; a verb's module loads only the imports of that
verb.
"""
