"""Values of ppsim that must not change by accident, in JSON files that scripts/freeze_values.py writes."""
