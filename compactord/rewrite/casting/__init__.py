"""Java's casts for values of a column whose type has changed, on Arrow arrays.

`rules` has all casts, and `rules.cast` is the entry point. A cast takes an array in the Arrow type
of the old type and returns an array in the new one. If Arrow or numpy gives Java's result, the
whole array is cast at once, otherwise each distinct value. A value that cannot be cast raises
`CastError` with Java's reason. Imports no reader or writer.
"""
