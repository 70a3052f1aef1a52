"""The service's configuration: read, validated as a whole, explained."""
