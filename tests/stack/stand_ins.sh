#!/usr/bin/env bash
# Stand-ins for images that cannot be pulled, under names of their own:   stand_ins.sh WORK JARS NAME=TAG ...
# NAME: python (Debian 12 with its own Python 3.11), kafka (its published jars, from the folder JARS, behind the image's own
# set-up class), prometheus (Debian's) or grafana (answers its health check, if its secret and volume can be used, and no more).
# Needs an engine, Debian's packages and python=TAG first. As root: a root file system is made. Nothing is installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) work=$(mkdir -p "$1" && cd "$1" && pwd) jars=$2
shift 2
network=$(docker network inspect bridge >/dev/null 2>&1 && echo default || echo host)

unpacked_debootstrap() { # its own package, unpacked beside where it is not installed
  if ! command -v debootstrap; then
    ls "$work"/debootstrap_*.deb >/dev/null 2>&1 || (cd "$work" && apt-get download -qq debootstrap >&2)
    [ -d "$work/debootstrap" ] || dpkg-deb -x "$work"/debootstrap_*.deb "$work/debootstrap"
    echo "$work/debootstrap/usr/sbin/debootstrap"
  fi
}

base() { # tag
  local root="$work/python" tool
  if [ ! -f "$root/etc/made" ]; then
    tool=$(unpacked_debootstrap)
    [ "$tool" = "$(command -v debootstrap || true)" ] || export DEBOOTSTRAP_DIR="$work/debootstrap/usr/share/debootstrap"
    rm -rf "$root"
    "$tool" --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates bookworm "$root" >"$work/debootstrap.log" 2>&1 \
      || { tail -n 3 "$work/debootstrap.log" >&2; exit 1; }
    ln -sf python3 "$root/usr/bin/python"
    rm -rf "$root"/usr/lib/python3*/EXTERNALLY-MANAGED "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    touch "$root/etc/made"
  fi
  # The machine's own word on package indexes and authorities.
  for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [ ! -e "$file" ] || cp -L --parents "$file" "$root/"
  done
  tar -C "$root" -c . | docker import --change 'ENV LANG=C.UTF-8' - "$1" >/dev/null
}

for wanted in "$@"; do
  name=${wanted%%=*} tag=${wanted#*=}
  if [ "$name" = python ]; then python=$tag; fi
  echo "building $tag" >&2
  if [ "$name" = python ]; then
    docker image inspect "$tag" >/dev/null 2>&1 || base "$tag"
  else # from the engine's cache, where nothing changed
    docker build --quiet --network "$network" --build-arg "BASE=$python" --build-context "jars=$jars" \
      --tag "$tag" "$here/images/$name" >/dev/null
  fi
done
