"""The live files of a table at one snapshot, as columns, updated with later snapshots' deltas."""
