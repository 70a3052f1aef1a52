"""Decisions about what to compact: pure functions from files and options to compactions.

`table.plan_bucket` is the entry. Imports `model` and values of `paimon` and `state`, and no
storage, clock or logging; the time of day is an argument.
"""
