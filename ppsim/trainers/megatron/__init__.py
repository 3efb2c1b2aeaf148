"""Megatron-LM: its arguments read and written, its schedules, logs and simulated steps."""
