"""What every layer needs and no layer is about: checks, files, configuration, progress."""
