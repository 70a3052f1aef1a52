"""Kinds of maintenance that write-only jobs leave undone, and the check of all files (`verify`).

`kind` has the protocol, `registry` the list of kinds. Imports `commit`, `config`, `model`,
`paimon`, `state` and `storage`, and no catalog, engine or plan.
"""
