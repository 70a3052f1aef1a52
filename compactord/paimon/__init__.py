"""The formats of Paimon 2.0.0: schemas, options, snapshots, manifests, types, values.

Entry points: `schema.parse_schema`, `options.table_options.parse_options`,
`snapshot.parse_snapshot`, `manifest`. Imports `storage` and the modules without a package. Decides
nothing about compactions.
"""
