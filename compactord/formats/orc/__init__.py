"""Data files in the ORC format; no other package knows ORC.

Entry point: `format.ORC`. From `formats` it may import `base`, `layout` and `row_bounds` only, not
`registry`.
"""

NAME = "ORC"
