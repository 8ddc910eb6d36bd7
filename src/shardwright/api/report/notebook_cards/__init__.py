"""Cards of results in notebooks: their contents, HTML fragment and registration in IPython."""
