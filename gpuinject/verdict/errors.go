package verdict

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Kind is the class of a refusal. The edge of the Task API translates it to a gRPC code.
type Kind int

const (
	// KindInternal: an unexpected failure.
	KindInternal Kind = iota
	// KindInvalid: the container's configuration has to change (InvalidArgument).
	KindInvalid
	// KindPrecondition: this host cannot satisfy the request in its present state
	// (FailedPrecondition).
	KindPrecondition
	// KindDenied: the operator's policy does not allow the request (PermissionDenied).
	KindDenied
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
		if unicode.IsGraphic(r) { // guard: messages: paths of an image
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRuneToGraphic(r), "'"))
		}
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Internal returns an error of KindInternal.
func Internal(format string, args ...any) error { return refuse(KindInternal, format, args) }

// Invalid returns an error of KindInvalid.
func Invalid(format string, args ...any) error { return refuse(KindInvalid, format, args) }

// Precondition returns an error of KindPrecondition.
func Precondition(format string, args ...any) error { return refuse(KindPrecondition, format, args) }

// Denied returns an error of KindDenied.
func Denied(format string, args ...any) error { return refuse(KindDenied, format, args) }

func refuse(kind Kind, format string, args []any) error {
	return &Error{Kind: kind, Err: fmt.Errorf(format, args...)}
}
