"""What write-only jobs leave undone: expired snapshots and orphan files, deleted safely."""
