// Package elffile makes the least shared libraries that a loader accepts, for tests without a
// compiler.
package elffile
