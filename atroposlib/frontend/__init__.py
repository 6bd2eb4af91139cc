"""Pages that a browser opens from a file, with nothing loaded from elsewhere."""
