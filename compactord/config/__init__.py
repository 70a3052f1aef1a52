"""What the service was told to do: read, checked as a whole, explained."""
