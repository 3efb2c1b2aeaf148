"""What it runs on: devices, links, collectives, kernel times."""
