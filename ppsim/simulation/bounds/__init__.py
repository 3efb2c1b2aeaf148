"""Lower bounds on step time and span for a placement."""
