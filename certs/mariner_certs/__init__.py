"""Certificates for the gateway: a CA, server and client certificates, and what they say.

Made by the package ``cryptography``: ECDSA P-256 keys, in unencrypted PEM files of mode
0600. ``mariner certs`` is the command; ``authority`` makes certificates, ``files`` keeps
them, ``inspection`` tells what they are good for, ``development`` is the set of ``make run``.
"""
