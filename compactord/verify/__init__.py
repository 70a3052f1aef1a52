"""Checks of a table's files: all of them for `verify`, live ones for holds, which stop deletions.

`verify` and `holds` are the entries. Imports `paimon`, `state` and `storage`; `table` and
`maintenance` import it.
"""
