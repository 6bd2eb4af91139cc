"""Rewards to advantages per trained token."""
