"""The configuration of the service: read, validated as a whole, explained.

`load.load_config` is the entry, `model.ServiceConfig` the result. Imports `catalog`, `formats`,
`model` and `paimon`, and neither tables nor the scheduler.
"""
