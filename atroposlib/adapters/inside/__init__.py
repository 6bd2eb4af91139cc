"""Code that another library imports and runs; a module here imports that library at once."""
