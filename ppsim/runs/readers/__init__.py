"""One file a format of another profiler or trainer."""
