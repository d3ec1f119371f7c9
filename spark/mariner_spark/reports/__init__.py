"""Reports about events: data frame in, data frame out, and ``mariner report`` around them.

::

    events     prepared events, buckets of time
    activity, latest, gaps, latency, values, availability, top     the reports
    catalogue  all reports by name, and their columns on the page
    reading    reads events from a store, a lake or a gateway
    generate   writes the files of each report, and the page
    page       the page: charts (Vega-Lite), tables, one HTML file
    views, charts, formats     a report on the page: a sentence, charts, formatted values

In a program::

    from mariner_spark.reports.gaps import gaps

    gaps(mariner_spark.read(spark, store="data/events", types="site/*")).show()

To read events once for several reports: ``prepare(events).persist()``.
"""
