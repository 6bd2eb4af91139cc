"""Status of a run: healthy, waiting as it should, stuck or done, why, and what to do.

    samples (status, counters) --> Evidence --> rules --> findings --> Verdict
                                                                         |
    API: GET /status, GET /explore/why <---------------------------------'
    sources, view    panel and lines of the launchers
    top, why         commands; /ui/ shows the same document

Only the API judges. A rule is a pure function of the evidence, and fires on a lack of progress,
never on a state alone.
"""
