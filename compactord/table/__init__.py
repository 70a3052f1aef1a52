"""One table: open it, follow it, plan, cut into subcompactions, settle.

`opening` and `session` are the entries. Imports all packages below `scheduler`; it knows no other
table, no slots and no service.
"""
