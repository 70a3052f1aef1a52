"""Avro object containers, their schemas, and records as rows or columns.

Entry points: `container.open_container` reads a file, `columns.decode_blocks` decodes many blocks
at once. Must not import manifests.
"""
