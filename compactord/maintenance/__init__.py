"""Kinds of maintenance that write-only jobs leave undone.

`kind` has the protocol, `registry` the list of kinds. Kinds work on the tables that `table` opens.
Imports no catalog, engine or plan.
"""
