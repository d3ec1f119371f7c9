"""Tests of what every listener does with connections."""
