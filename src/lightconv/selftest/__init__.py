"""What the project promises about failures, as checks that anyone can run: `lightconv selftest`."""
