"""Execution and recording of a schedule with torch; needs the extra `torch`."""
