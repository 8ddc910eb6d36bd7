"""The verbs of the command line as functions. A verb's module loads what that verb needs, and no
more.
"""
