"""Runs one subcompaction: reads its input files, merges them, writes output files.

Entry point: `subcompaction.run_subcompaction`. Imports `formats`, `kernels`, `model`, `paimon` and
`storage`; it knows no engine, plan or snapshot.
"""
