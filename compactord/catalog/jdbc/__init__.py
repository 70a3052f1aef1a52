"""The JDBC catalog: a database names the tables, and keeps locks of them."""
