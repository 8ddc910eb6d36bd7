"""Text, XML and YAML that other programs print, read up to a limit."""
