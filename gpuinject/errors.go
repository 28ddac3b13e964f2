package gpuinject

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Kind is the class of a refusal. The Task API's edge makes gRPC codes of it.
type Kind int

const (
	// Internal: something failed that should not have.
	Internal Kind = iota
	// Invalid: the container asks for what no host has (InvalidArgument).
	Invalid
	// Precondition: this host is not ready to give it (FailedPrecondition).
	Precondition
	// Denied: the operator's policy does not let the container have it (PermissionDenied).
	Denied
)

// String returns the name of the gRPC code.
func (k Kind) String() string {
	return []string{"internal", "invalid_argument", "failed_precondition", "permission_denied"}[k]
}

// Error is a failed or refused request, in one line.
type Error struct {
	Kind Kind
	Err  error
}

// Error returns the text. An image chooses the names of its directories, which errors of the os
// package repeat as they are: what is no graphic character is escaped (T47).
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
