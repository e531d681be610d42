#!/bin/bash
# Stops the S3 server that tools/s3/up.sh started in DIR. Usage: tools/s3/down.sh DIR
exec "${0%/*}/up.sh" --stop "$@"
