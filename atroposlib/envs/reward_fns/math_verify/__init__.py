"""Checks of mathematical answers by math-verify, in a process that can be killed."""
