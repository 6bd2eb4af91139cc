"""Live view of a run, for the launchers: what files and HTTP routes show, as a panel or lines.

heldout   held-out checks, as environments write these files
sources   metrics, held-out checks, API and server -> RunSnapshot
view      RunSnapshot -> panel on a terminal, or a line per step
"""
