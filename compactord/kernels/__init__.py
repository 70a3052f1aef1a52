"""Merges sorted batches: pure functions over Arrow columns.

Entry point: `merge.merge_runs`. Imports values of `paimon` only; it knows no files, paths or
tables.
"""
