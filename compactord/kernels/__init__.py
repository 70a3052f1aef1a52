"""Merging sorted batches: pure functions over Arrow columns.

No file, path or table is known here.
"""
