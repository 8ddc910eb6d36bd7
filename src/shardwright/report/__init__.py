"""Text screens, pictures and JSON documents of results that other packages computed."""
