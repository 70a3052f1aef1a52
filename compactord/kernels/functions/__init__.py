"""Merge functions reduce the records of a key to one row. One module for each merge engine."""
