"""The run as it goes on: who is there, what is held, which verbs there are. No HTTP."""
