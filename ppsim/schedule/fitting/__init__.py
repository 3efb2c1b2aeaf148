"""Tables fitted to the costs at hand and to a memory cap: generators of candidates, and what improves them."""
