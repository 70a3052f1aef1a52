"""What a snapshot names: manifests, their entries, index manifests."""
