"""Data files in the Parquet format; no other package knows Parquet."""

NAME = "Parquet"
