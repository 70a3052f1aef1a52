"""The web page that the daemon serves at `/`: drawn on the server, read-only, of one piece."""
