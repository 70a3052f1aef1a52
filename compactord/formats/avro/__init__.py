"""Data files in the Avro format, decoded and encoded by fastavro; manifests are `paimon.manifest`.

Entry point: `format.AVRO`. From `formats` it may import `base`, `layout` and `row_bounds` only, not
`registry`; from `paimon` also `avro`.
"""

NAME = "Avro"
