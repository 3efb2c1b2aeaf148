"""Schedules as defined in their papers."""
