"""Deciding what to compact: pure functions from files and options to compactions.

No storage, clock or logging is known here; the time of day is an argument.
"""
