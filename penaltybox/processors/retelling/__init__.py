"""A subject's past told again: the same engine over its recorded events, with a verdict and a reason for each."""
