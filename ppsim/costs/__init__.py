"""From shapes and measurements to seconds and bytes per stage."""
