"""What the stages say to each other: events, subjects, policy, settings, errors. No I/O."""
