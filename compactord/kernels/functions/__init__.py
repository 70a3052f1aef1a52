"""Merge functions: each reduces the records of a key to one row. One module per merge engine.

Entry point: `registry.function_named`. Imports `kernels`, never file formats.
"""
