"""Reports about events: data frame in, data frame out, and ``mariner report`` around them.

::

    events     events as reports read them: prepared, in buckets of time
    activity, latest, gaps, latency, values, availability, top     the reports
    catalogue  all of them, by name, with how they are shown
    reading    events of a store, a lake or a gateway
    generate   what the command does: files of each report, and the page
    page       the page: charts (Vega-Lite), tables, one HTML file
    views, charts, formats     what it shows of a report

In a program::

    from mariner_spark.reports.gaps import gaps

    gaps(mariner_spark.read(spark, store="data/events", types="site/*")).show()

Several reports about the same events share one read: ``prepare(events).persist()``.
"""
