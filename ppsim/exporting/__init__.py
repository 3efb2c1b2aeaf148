"""Schedules and timelines for other programs."""
