"""The lake: events as Parquet files, which Spark and other tools read natively.

:func:`~mariner_spark.lake.read.read` returns it as a data frame, ``ingest`` appends the events of
gateways (``writer`` is the sink of that stream), ``compact`` merges small files, and ``info``
summarises it. ``manifest`` lists the files of the lake, ``segments`` writes them, ``files`` is the
file system, and ``lock`` serialises changes. ``README.md`` beside this file describes the layout,
and how to read it with other tools.
"""
