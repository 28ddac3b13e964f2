package gpuinject

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Kind is the class of a refusal. The edge of the Task API translates it to a gRPC code.
type Kind int

const (
	// Internal: an unexpected failure.
	Internal Kind = iota
	// Invalid: the container's configuration has to change (InvalidArgument).
	Invalid
	// Precondition: this host cannot satisfy the request in its present state (FailedPrecondition).
	Precondition
	// Denied: the operator's policy does not allow the request (PermissionDenied).
	Denied
)

// String returns the name of the gRPC code.
func (k Kind) String() string {
	return []string{"internal", "invalid_argument", "failed_precondition", "permission_denied"}[k]
}

// Error describes a failed or refused request in one line.
type Error struct {
	Kind Kind
	Err  error
}

// Error returns the message with non-graphic characters escaped: errors of the os package contain
// paths verbatim, and an image chooses the names of its directories (T47).
func (e *Error) Error() string {
	var b strings.Builder
	for _, r := range "nvidia: " + e.Err.Error() {
		if unicode.IsGraphic(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRuneToGraphic(r), "'"))
		}
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func fail(kind Kind, format string, args ...any) error {
	return &Error{Kind: kind, Err: fmt.Errorf(format, args...)}
}
