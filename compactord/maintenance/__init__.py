"""Kinds of maintenance that write-only jobs leave undone.

`kind` has the protocol, `registry` the list of kinds. Imports `commit`, `config`, `model`,
`paimon`, `state`, `storage` and `verify`, and no catalog, engine or plan.
"""
