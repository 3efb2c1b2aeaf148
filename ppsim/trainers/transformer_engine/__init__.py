"""TransformerEngine: the order of passes of `make_graphed_callables`."""
