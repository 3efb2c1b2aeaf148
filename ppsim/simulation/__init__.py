"""A schedule and the costs of its stages to a timeline, with memory, bounds and a report. Knows no models."""
