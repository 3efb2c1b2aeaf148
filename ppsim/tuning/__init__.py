"""Many plans of a question, and the best of them."""
