"""Display of results: text in a terminal, cards in a notebook."""
