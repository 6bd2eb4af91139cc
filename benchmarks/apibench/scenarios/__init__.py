"""Scenarios, a module each; ``run(plan)`` measures and returns a section of the page."""
