"""`compactord top`: tables, runs against triggers and work, live in a terminal."""
