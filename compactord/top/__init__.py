"""`compactord top`: tables, runs against triggers and work, live in a terminal.

`top` is the entry; `daemon` reads a service, `warehouse` a warehouse, `frame` draws. May import all
packages except `cli`.
"""
