"""`compactord demo`: write-only jobs fill two tables while the service keeps them compact."""
