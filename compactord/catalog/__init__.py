"""Catalogs: list the tables of a warehouse and open them.

`open.open_catalog` is the entry, `base.Catalog` the protocol, `registry` the list of kinds. Imports
`commit`, `paimon`, `state` and `storage`; no module that plans or runs compactions.
"""
