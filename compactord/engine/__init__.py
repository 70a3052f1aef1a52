"""Engines: run subcompactions on workers, and return their outcomes.

`kinds.ENGINES` is the entry, `base.Engine` the protocol. The only package that uses PySpark. It
imports `model`, `rewrite` and `storage`, and no catalog, plan or commit.
"""
