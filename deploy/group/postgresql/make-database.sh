#!/bin/sh
# Makes the role of the gateways and their database; Patroni runs it once, with a connection string.
set -eu
psql -X -v ON_ERROR_STOP=1 -v password="$(cat /run/secrets/mariner)" "$1" <<'EOF'
CREATE ROLE mariner LOGIN PASSWORD :'password';
CREATE DATABASE mariner OWNER mariner;
EOF
