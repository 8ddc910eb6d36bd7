"""Tables of a framework's settings, which its reader and its writer share."""
