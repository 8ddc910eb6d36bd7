"""Where the independent parts of a search run: in this process, in several, or on Ray."""
