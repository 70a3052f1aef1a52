"""Aggregators make one value of a column's values of a key. One module for each kind of them."""
