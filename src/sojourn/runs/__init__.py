"""What a run leaves behind: its folder, histories, measures, comparisons."""
