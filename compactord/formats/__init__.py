"""Data files: one package or module for each file format.

Entry points: `registry` (formats by name, formats of new files) and the protocol in `base`. Imports
`kernels`, `model`, `paimon` and `storage`; only its own package knows a format.
"""
