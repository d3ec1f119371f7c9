"""Errors of the certificate tool.

::

    CertificateError
    └── InvalidNameError    a host or a name that no certificate can be for (also a ValueError)
"""


class CertificateError(Exception):
    """A file that is in the way, missing, or not what it should be; names the file."""


class InvalidNameError(CertificateError, ValueError):
    """A host or a name that no certificate can be for; the message says what was expected."""
