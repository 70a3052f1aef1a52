"""Options of tables: their names, texts, values and rules."""
