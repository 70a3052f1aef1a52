"""One table: open it, follow it, plan, cut into subcompactions, settle."""
