"""Constants fitted to measured step times, with rows held out.

Errors are judged in validation.errors.
"""
