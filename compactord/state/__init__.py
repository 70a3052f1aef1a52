"""The live files of a table at one snapshot, as columns, updated with later snapshots' deltas.

`table_state` is the entry. Imports `paimon` and `storage`, and no catalog, plan or commit.
"""
