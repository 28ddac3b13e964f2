// Package linker tests that programs of every kind of image find the driver's files: the
// loader's cache, forward compatibility, vendor-neutral loaders, volumes, upgrades.
package linker
