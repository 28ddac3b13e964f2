#!/bin/sh
# Runs a cluster of kind in the node image that this version of kind takes by itself (as root).
exec make -C "$(dirname "$0")/../.." test-kind \
	NODE=kindest/node:v1.37.0@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5
