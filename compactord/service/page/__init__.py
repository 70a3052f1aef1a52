"""The web page that the daemon serves at `/`: rendered on the server, read-only, self-contained."""
