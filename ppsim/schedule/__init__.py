"""One table: its file format, placements, lowering, event graph and checker."""
