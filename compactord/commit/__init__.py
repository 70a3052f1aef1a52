"""Commits: conflict checks, manifests and snapshots of finished compactions.

`committer.Committer` is the entry. Imports `model`, `paimon`, `state` and `storage`, and no catalog
or engine.
"""
