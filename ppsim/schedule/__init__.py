"""The schedule table: its file format, placements, generators, checker and lowering."""
