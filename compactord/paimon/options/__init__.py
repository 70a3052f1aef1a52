"""Options of tables: their names, texts, values and rules.

Entry points: `table_options.parse_options` for all values, `catalogue.check_override` for options
of one run. Imports schemas and types of `paimon`, never metadata files or a store.
"""
