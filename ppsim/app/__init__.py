"""Local web page with sliders over projections and searches."""
