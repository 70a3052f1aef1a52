"""The command line: arguments in, text or JSON out. The only place that joins the packages."""
