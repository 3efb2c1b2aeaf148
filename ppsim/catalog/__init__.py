"""Every schedule by name: published patterns, searches that fit tables, and the entries of both."""
