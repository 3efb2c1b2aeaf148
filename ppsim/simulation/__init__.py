"""Simulate a schedule with costs per stage: timeline, memory, lower bounds and report. Independent of models."""
