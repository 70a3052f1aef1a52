"""A demo of compactord as a user's program: write-only jobs fill two tables, the service compacts
them.
"""
