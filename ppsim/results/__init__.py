"""How results read: as text in a terminal, and as a card in a notebook."""
