"""Merge functions: how the records of a key become one. One module for each merge engine."""
