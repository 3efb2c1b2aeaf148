"""Projections compared with published runs, and calibration constants fitted to runs."""
