"""Executes a schedule with torch and records it; needs the extra `torch`."""
