"""Any command of ``mariner`` as an application of Spark, for ``spark-submit``.

For example ``spark-submit --py-files mariner.zip mariner_job.py report activity --gateway …``.
The session is the one that was submitted, as it is configured.
"""

from mariner.cli import main

if __name__ == "__main__":
    main(prog_name="mariner")
