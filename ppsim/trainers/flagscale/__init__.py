"""FlagScale: read its YAML."""
