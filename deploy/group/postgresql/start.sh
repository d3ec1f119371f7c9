#!/bin/sh
# Starts Patroni, which takes passwords from its environment; PostgreSQL wants a key of its own.
set -eu
umask 077
cp /run/secrets/postgresql.key /run/postgresql/server.key
export PATRONI_NAME="$HOSTNAME"
export PATRONI_POSTGRESQL_CONNECT_ADDRESS="$HOSTNAME:5432"
export PATRONI_RESTAPI_CONNECT_ADDRESS="$HOSTNAME:8008"
PATRONI_SUPERUSER_PASSWORD=$(cat /run/secrets/superuser)
PATRONI_REPLICATION_PASSWORD=$(cat /run/secrets/replication)
export PATRONI_SUPERUSER_PASSWORD PATRONI_REPLICATION_PASSWORD
exec patroni /etc/patroni.yaml
