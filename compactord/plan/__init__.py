"""Deciding what to compact: pure functions from files and options to compactions.

Nothing here uses storage, clock or logging; the time of day is an argument.
"""
