"""The Hive catalog: a metastore holds tables, their locations and their locks.

`kind.HIVE` is the entry. Only `catalog` and the modules it imports need the package thrift.
"""
