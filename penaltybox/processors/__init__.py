"""What a decision leads to: the pure engine, and the Faust agents that drive it."""
