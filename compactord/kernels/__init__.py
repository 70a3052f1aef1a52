"""Merging sorted batches: pure functions over Arrow columns.

This package knows no files, paths or tables.
"""
