"""The same answers in a browser: a local page of sliders over projections and searches."""
