"""Cannot be imported."""

_ = 1 / 0
