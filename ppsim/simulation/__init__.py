"""The discrete-event core: schedule and costs in, timeline out. Knows nothing of models or files."""
