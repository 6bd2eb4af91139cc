"""Environments with generated tasks, real checkers and gold replies: docs/gallery.md."""
