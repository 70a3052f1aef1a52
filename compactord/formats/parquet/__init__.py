"""All that knows Parquet."""
