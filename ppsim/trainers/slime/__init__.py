"""slime: read its launch scripts."""
