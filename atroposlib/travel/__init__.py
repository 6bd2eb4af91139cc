"""Time travel: ended runs scored by another reward, and trained on again batch by batch."""
