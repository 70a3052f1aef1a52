"""The command line: arguments in, text or JSON out.

`command.main` is the entry; each command has a module of its own. Puts the packages together and
may import all of them; no other package imports this one.
"""
