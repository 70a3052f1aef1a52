"""Write-only jobs fill two tables while the service keeps them compact: a user of compactord."""
