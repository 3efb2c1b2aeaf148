"""Measured runs in one common form: explained, compared with projections, and used for calibration."""
