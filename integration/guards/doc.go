// Package guards proves that each guard of the product matters: without it, a test fails.
//
// A comment marks a guard's line, at its end or above it, with the guard's area and what it does:
//
//	if len(data) > MaxCacheSize { // guard: parsers: cache size
//
// The table has a row for each mark, with the test that fails without the guard:
//
//	{"parsers: cache size", "TestAHostileCacheIsAnError"},
//
// A marked condition then never holds, and a marked statement is not executed; a row may name a part
// of the line instead, and what replaces it. A line with several guards has "; " between their
// names. Marks without a row and rows without a mark fail the tests.
//
// No build tag in the product removes a guard: `go test -overlay` compiles a copy of the one file
// without it, so the product carries nothing for these tests but the comments.
//
// `make test` checks the table: it fits the source, what it makes compiles, its tests exist, and
// docs/guards.md has the same rows. `make guards` removes one guard at a time and runs its test,
// as root, in a mount namespace of its own. To add a guard: the mark, its row, its line in
// docs/guards.md (the failing test prints the table), and
//
//	go test -tags guards -run 'TestNoTestPassesWithoutItsGuard/parsers:_cache_size' ./integration/guards
package guards
