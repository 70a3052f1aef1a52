"""All tables: next jobs, slots, priority, backlog and quarantine. Pure.

`scheduler.Scheduler` is the entry. Imports `commit`, `config`, `maintenance`, `model`, `paimon` and
`table`, and no storage, catalog or engine.
"""
