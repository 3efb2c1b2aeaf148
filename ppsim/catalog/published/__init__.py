"""Schedules as their papers define them."""
