"""All tables: what is next, slots, priority, backlog, quarantine. Pure."""
