"""What becomes of values whose column has got another type: Java's casts, on Arrow arrays.

`rules` says which casts there are. Each takes an array in the Arrow type of the old type and
returns one in that of the new. Where Arrow or numpy gives Java's result the whole array is cast at
once, else each distinct value. A value that cannot be cast raises `CastError` with Java's reason.
"""
