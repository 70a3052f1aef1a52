"""The live files of a table at one snapshot, as columns, and how they follow it by deltas."""
