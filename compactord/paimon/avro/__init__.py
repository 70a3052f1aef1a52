"""Avro: containers, and their records as rows or columns."""
