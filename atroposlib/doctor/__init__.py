"""Diagnosis of a run: the causes of a halt, and their remedies.

    looks (HTTP) --> Evidence: two looks, seconds apart --> rules --> Finding
    why              atropos why: at most five findings, strongest first
    top              atropos top: the run as a live table

A rule is a pure function of the evidence. It fires on a lack of progress, never on a state alone.
"""
