"""Search over plans for the fastest that fits."""
