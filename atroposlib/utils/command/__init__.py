"""What all commands share: flags of every command, one log format, one error line."""
