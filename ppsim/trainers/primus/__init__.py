"""Primus: its experiments, its node lists of schedules, and its pipeline traces."""
