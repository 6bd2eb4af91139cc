"""State of the loop: stop signal, schedules."""
