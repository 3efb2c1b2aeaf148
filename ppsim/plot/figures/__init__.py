"""Print figures with matplotlib: functions that return a `Figure` one or two columns wide."""
