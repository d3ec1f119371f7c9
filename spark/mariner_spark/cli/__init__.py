"""The commands of Spark: ``mariner lake`` and ``mariner report``."""
