"""Pages that answer: the explorer of settings and the view of a running folder, on this machine only."""
