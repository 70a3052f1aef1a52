"""Maintenance that write-only jobs leave undone: deleting expired snapshots and orphan files."""
