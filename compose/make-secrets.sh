#!/bin/sh
# What compose hands to its services, made once and kept: a token (asked of whoever calls the inference front, the page or a
# stage's metrics) and the password of Grafana's user `admin`.     make-secrets.sh [FOLDER, else compose/secrets]
# The folder is its owner's alone. The files in it are its owner's to write and readable by all: who reads them in a container
# is neither their owner nor root, and nobody else on this machine gets past the folder.
set -eu
folder=${1:-$(dirname "$0")/secrets}
umask 077
mkdir -p "$folder"
chmod 700 "$folder"
for name in token grafana; do
  if [ ! -s "$folder/$name" ]; then
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"$folder/$name"
    echo "made $folder/$name"
  fi
  chmod 644 "$folder/$name"
done
