// Package mounts removes directories below which something may be mounted.
package mounts
