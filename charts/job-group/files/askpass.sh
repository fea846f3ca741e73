#!/bin/sh
# Answers git during the clone of the workdir, and only about its server: "Username for
# 'https://host': ". The token comes from the environment, so it is in no command line and no file.
server=${1#*\'}
server=${server%\'*}
host=${server#*://}
host=${host%%/*}
[ "${server%%://*}://${host##*@}" = "$GPU_CHARTS_GIT_SERVER" ] || exit 1
case $1 in
  Username*) echo x-access-token ;;
  *) printf '%s\n' "$GIT_TOKEN" ;;
esac
