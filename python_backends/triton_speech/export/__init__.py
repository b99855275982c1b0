"""Writes parts of a model as portable graphs, and all that another server needs to serve them."""
