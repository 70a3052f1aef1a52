"""Aggregators: each computes one value from a column's values of a key. One module per group.

Entry point: `registry.accumulator`. Must not import `kernels.functions`, which use it.
"""
