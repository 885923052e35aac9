"""Models of other toolkits, read as data."""
