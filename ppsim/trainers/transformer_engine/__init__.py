"""TransformerEngine: the order of forward and backward passes for `make_graphed_callables`."""
