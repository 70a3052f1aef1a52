"""The REST catalog: a server keeps the tables, their schemas and newest snapshots, and commits."""
