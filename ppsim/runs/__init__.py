"""Measured runs: read, compared with projections, and calibrated from."""
