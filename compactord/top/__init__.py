"""`compactord top`: tables, runs against triggers and work, live in a terminal.

`top` is the entry; `status` reads a service or a warehouse, `frame` draws. May import all packages
except `cli`.
"""
