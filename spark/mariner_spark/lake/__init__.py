"""The lake: history as Parquet files, which Spark and others read natively.

:func:`~mariner_spark.lake.read.read` gives it as a data frame, ``ingest`` appends what gateways
have (``writer`` is the sink of that stream), ``compact`` makes large files of small ones, and
``info`` tells what is in it. ``manifest`` says which files are the lake, ``segments`` how they
are made, ``files`` where they are and ``lock`` who may change them. ``README.md`` beside this
file describes the layout, and how to read it without us.
"""
