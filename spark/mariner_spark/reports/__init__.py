"""Reports about events: data frame in, data frame out, and ``mariner report`` around them.

Each of ``activity``, ``latest``, ``values``, ``gaps``, ``latency``, ``availability`` and ``top``
has the function of a report, and its form on the page (``views``). In a program::

    from mariner_spark.reports.gaps import gaps

    gaps(mariner_spark.read(spark, store="data/events", types="site/*")).show()

To read events once for several reports: ``prepare(events).persist()``.
"""
