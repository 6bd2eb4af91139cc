"""One module per scenario; ``run(plan)`` measures it and returns a section of the page."""
