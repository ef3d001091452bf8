"""Where recorded events come from: one module each. All yield the same slices, in the order of their replay."""
