"""Terminal output of the command line: screens, progress, exit codes."""
