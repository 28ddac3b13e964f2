package verdict

import (
	"fmt"
	"slices"
)

// Log is what people read about a container.
type Log struct {
	Decisions []Decision
	Notes     []string
	// Ignored lists requests that are ignored, although the container gets its GPUs.
	Ignored []string
	// Warnings say what the container gets less than its request names through a fault of the host,
	// and why the driver may not work in it.
	Warnings []string
	// Audit lists why kubernetes = "enforce" would have refused the container, if the mode is "audit".
	Audit []string
}

// Decision is one decision about a container, for the operator. Decisions cover every device of the
// host, so they must never appear in an error that a container's owner reads.
type Decision struct {
	// Subject of the decision: "GPU 2", "capabilities", "gds".
	Subject string `json:"subject"`
	// Decision is one to four words: "given", "refused", "masked".
	Decision string `json:"decision"`
	Reason   string `json:"reason"`
}

// Decide records a decision.
func (l *Log) Decide(subject, decision, format string, args ...any) {
	l.Decisions = append(l.Decisions, Decision{Subject: subject, Decision: decision, Reason: fmt.Sprintf(format, args...)})
}

// Note records something worth knowing about the container that is not a decision.
func (l *Log) Note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(l.Notes, n) {
		l.Notes = append(slices.Clip(l.Notes), n)
	}
}

// Warn records what the operator should know although the container starts.
func (l *Log) Warn(format string, args ...any) {
	l.Warnings = append(l.Warnings, fmt.Sprintf(format, args...))
}

// Ignore records a request that is ignored.
func (l *Log) Ignore(what, reason string) {
	l.Ignored = append(l.Ignored, what+": "+reason)
	l.Decide(what, "ignored", "%s", reason)
}

// Join appends another log. A note is not repeated.
func (l *Log) Join(more Log) {
	l.Decisions = slices.Concat(l.Decisions, more.Decisions)
	for _, n := range more.Notes {
		l.Note("%s", n)
	}
	l.Ignored = slices.Concat(l.Ignored, more.Ignored)
	l.Warnings = slices.Concat(l.Warnings, more.Warnings)
	l.Audit = slices.Concat(l.Audit, more.Audit)
}
