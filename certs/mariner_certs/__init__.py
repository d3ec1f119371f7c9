"""Certificates for the gateway: a CA, server and client certificates, and what they say.

ECDSA P-256 keys, in unencrypted PEM files of mode 0600, by the package ``cryptography``.
"""
