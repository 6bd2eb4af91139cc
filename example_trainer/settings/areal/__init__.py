"""AReaL's option names and values, translated to the settings of this trainer."""
