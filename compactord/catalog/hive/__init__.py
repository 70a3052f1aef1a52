"""The Hive catalog: a metastore names the tables and their locations, and keeps locks of them."""
