"""One contract over all stores: bytes under paths, and atomic creation of one object.

`base.Storage` is the protocol, `open.Stores` opens the store of a location. Imports only the
modules at the root that are values: `errors`, `ids`, `clock` and `text`.
"""
