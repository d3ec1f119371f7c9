"""The gateway process: configuration, life cycle, HTTP, metrics and logs."""
