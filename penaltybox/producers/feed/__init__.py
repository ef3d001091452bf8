"""What changes for enforcers, as lines that they can take up where they left off."""
