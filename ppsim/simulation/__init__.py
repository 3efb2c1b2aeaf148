"""A table and the costs of its stages in, a timeline out: with memory, bounds and a report. Knows no models."""
