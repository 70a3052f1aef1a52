"""The daemon around the scheduler: effects, metrics, HTTP, page and logs; runs over one table.

`daemon.Daemon` and `one_shot` are the entries. May import all packages except `top` and `cli`.
"""
