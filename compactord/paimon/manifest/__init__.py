"""Manifests, manifest lists and index manifests of a snapshot.

Entry points: `manifest_files` reads and writes manifests as objects, `entry_columns` reads many as
columns, `index_manifest` handles index files. Decides nothing: `state` and `commit` do.
"""
