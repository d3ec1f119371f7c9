"""Tests of groups: the log, and what its members make of it."""
