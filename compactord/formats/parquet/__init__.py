"""All that knows Parquet."""

NAME = "Parquet"
