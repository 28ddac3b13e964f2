package testenv

import (
	"testing"
	"time"
)

// waitLimit is far longer than anything takes that a test waits for, also on a machine that is
// busy with something else: only a test that fails waits so long.
const waitLimit = 2 * time.Minute

// Until polls done until it returns true, and reports whether it did so within waitLimit. It
// is for what no event announces.
func Until(done func() bool) bool {
	for deadline := time.Now().Add(waitLimit); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// Await is Until for a test, which fails if done stays false; what says what it waits for.
func Await(t testing.TB, what string, done func() bool) {
	t.Helper()
	if !Until(done) {
		t.Fatalf("not within %v: %s", waitLimit, what)
	}
}
