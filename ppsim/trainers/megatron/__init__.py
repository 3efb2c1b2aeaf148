"""Megatron-LM: read and write its arguments, write schedules, read logs, traces and simulated steps."""
