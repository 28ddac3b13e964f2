// Package guards proves that each guard of the product matters: without it, a test fails.
//
// The table has a row for each guard: where it is in the source, the text without it, and the test
// that fails then. No build tag in the product removes a guard: `go test -overlay` compiles a copy
// of the one file without it, so the product carries nothing for these tests.
//
// `make test` checks the table: it fits the source, what it makes compiles, its tests exist, and
// docs/guards.md has the same rows. `make guards` removes one guard at a time and runs its test,
// as root, in a mount namespace of its own.
package guards
