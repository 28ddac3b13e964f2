package testenv

import (
	"testing"
	"time"
)

// Until asks done again and again until it is true or the time is up, and reports
// whether it was true: for what happens a moment after an answer and gives no event.
func Until(limit time.Duration, done func() bool) bool {
	for deadline := time.Now().Add(limit); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// Await is Until for a test, which fails if the time is up; what says what it waits for.
func Await(t testing.TB, limit time.Duration, what string, done func() bool) {
	t.Helper()
	if !Until(limit, done) {
		t.Fatalf("not within %v: %s", limit, what)
	}
}
