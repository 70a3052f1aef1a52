"""Data files in the Parquet format; no other package knows Parquet.

Entry point: `format.PARQUET`. From `formats` it may import `base`, `finding` and `layout` only, not
`registry`.
"""

NAME = "Parquet"
