"""Files that the web server sends to browsers."""
