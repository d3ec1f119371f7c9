"""Modules: code that sees, adds to and starts sessions; see README.md of this folder."""
