"""The JDBC catalog: a database holds the names of tables, and their locks.

`kind.JDBC` is the entry. Only `catalog` and the modules it imports need the package sqlalchemy.
"""
