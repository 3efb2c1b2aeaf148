"""Devices, links, collectives and kernel times; the calibration constants of each GPU type."""
