"""Reports about events: relation in, relation out, and ``mariner report`` around them.

Each of ``activity``, ``latest``, ``values``, ``gaps``, ``latency``, ``availability`` and ``top``
has the function of a report, and its form on the page (``views``). In a program::

    from mariner_spark.reports.gaps import gaps

    gaps(mariner_spark.read(spark, store="data/events", types="site/*")).show()

Events are read once for several reports if the data frame is persisted.
"""
