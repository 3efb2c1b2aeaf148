"""Recorded runs in one form: explained, compared with projections, and used to calibrate."""
