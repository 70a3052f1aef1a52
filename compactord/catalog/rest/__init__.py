"""The REST catalog: a server holds tables, schemas and newest snapshots, and publishes commits.

`kind.REST` is the entry. Only `catalog` and the modules it imports need the package urllib3.
"""
