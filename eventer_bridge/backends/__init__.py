"""Backends: where events are kept. ``base`` says what each of them promises."""
