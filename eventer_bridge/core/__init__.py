"""The event core: what every wire serves its clients from."""
