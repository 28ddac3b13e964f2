package require

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// maxLength bounds an expression, in bytes. Those of CUDA images, which list every brand with every
// driver branch, have about 2000.
const maxLength = 16 << 10

// Property is what a term is about.
type Property string

// Properties.
const (
	// CUDA is the newest version of CUDA that the driver supports.
	CUDA Property = "cuda"
	// Driver is the version of the driver.
	Driver Property = "driver"
	// Arch is the compute capability of a GPU.
	Arch Property = "arch"
	// Brand is NVML's brand of a GPU.
	Brand Property = "brand"
)

// Expression is the value of one variable: alternatives. One without any requires nothing.
type Expression []Group

// Group is one alternative: terms that must all hold.
type Group []Term

// Term is one condition.
type Term struct {
	// Text is the term as it was written.
	Text     string
	Property Property

	operator string
	version  version
	brand    string
}

func (g Group) String() string {
	terms := make([]string, len(g))
	for i, t := range g {
		terms[i] = t.Text
	}
	return strings.Join(terms, ",")
}

// Needs reports whether a term of the expression is about one of the properties.
func (e Expression) Needs(properties ...Property) bool {
	return slices.ContainsFunc(e, func(g Group) bool {
		return slices.ContainsFunc(g, func(t Term) bool { return slices.Contains(properties, t.Property) })
	})
}

// Parse reads an expression. The error quotes the term that is wrong.
func Parse(text string) (Expression, error) {
	if len(text) > maxLength {
		return nil, fmt.Errorf("an expression of %d bytes: no more than %d are read", len(text), maxLength)
	}
	var e Expression
	for text := range strings.SplitSeq(text, " ") {
		var g Group
		for text := range strings.SplitSeq(text, ",") {
			if text == "" {
				continue
			}
			t, err := parseTerm(text)
			if err != nil {
				return nil, fmt.Errorf("invalid expression: %s: %w", request.Quote(text), err)
			}
			g = append(g, t)
		}
		if len(g) > 0 {
			e = append(e, g)
		}
	}
	return e, nil
}

// operatorRunes are what operators are made of.
const operatorRunes = "<>=!"

var operators = []string{"=", "!=", "<", "<=", ">", ">="}

func parseTerm(text string) (Term, error) {
	start := strings.IndexAny(text, operatorRunes)
	if start < 0 {
		return Term{}, errors.New("it has no operator (=, !=, <, <=, > or >=)")
	}
	name, rest := text[:start], text[start:]
	value := strings.TrimLeft(rest, operatorRunes)
	t := Term{Text: text, Property: Property(strings.ToLower(name)), operator: rest[:len(rest)-len(value)]}
	if !slices.Contains(operators, t.operator) {
		return Term{}, fmt.Errorf("%s is not one of the operators =, !=, <, <=, > and >=", request.Quote(t.operator))
	}
	if value == "" {
		return Term{}, errors.New("it has no value")
	}
	var err error
	switch t.Property {
	case CUDA, Driver, Arch:
		t.version, err = parseVersion(value)
	case Brand:
		if t.brand = value; t.operator != "=" && t.operator != "!=" {
			err = errors.New("a brand is compared by = and != only")
		}
	default:
		err = fmt.Errorf("%s is not one of the properties cuda, driver, arch and brand", request.Quote(name))
	}
	return t, err
}

// version is a version without trailing zeros: 12.0 is 12.
type version []uint64

// parseVersion reads digits and dots, beginning with a digit. Dots that follow one another count as
// one, as in NVIDIA's stack.
func parseVersion(text string) (version, error) {
	var v version
	for i, part := range strings.Split(text, ".") {
		if part == "" && i > 0 {
			continue
		}
		n, err := strconv.ParseUint(part, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s is not a version: digits and dots", request.Quote(text))
		}
		v = append(v, n)
	}
	for len(v) > 0 && v[len(v)-1] == 0 {
		v = v[:len(v)-1]
	}
	return v, nil
}
