"""The live files of a table at one snapshot, as columns, updated by deltas of later snapshots."""
