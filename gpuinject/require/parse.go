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

// Properties: the newest version of CUDA that the driver supports, the version of the driver, and
// the compute capability and NVML's brand of a GPU.
const (
	cuda   = "cuda"
	driver = "driver"
	arch   = "arch"
	brand  = "brand"
)

// operators report whether they hold, given how the host's value compares with the term's.
var operators = map[string]func(order int) bool{
	"=":  func(order int) bool { return order == 0 },
	"!=": func(order int) bool { return order != 0 },
	"<":  func(order int) bool { return order < 0 },
	"<=": func(order int) bool { return order <= 0 },
	">":  func(order int) bool { return order > 0 },
	">=": func(order int) bool { return order >= 0 },
}

// Expression is the value of one variable: a list of alternatives. An empty one requires nothing.
type Expression []Group

// Group is one alternative: terms that must all hold.
type Group []term

// term is one condition, and its text as it was written.
type term struct {
	text, property string
	holds          func(order int) bool
	version        version
	brand          string
}

func (g Group) String() string {
	texts := make([]string, len(g))
	for i, t := range g {
		texts[i] = t.text
	}
	return strings.Join(texts, ",")
}

func (e Expression) isAbout(property string) bool {
	return slices.ContainsFunc(slices.Concat(e...), func(t term) bool { return t.property == property })
}

// Parse reads an expression. The error quotes the invalid term.
func Parse(text string) (Expression, error) {
	if len(text) > maxLength { // guard: parsers: requirements
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

const operatorRunes = "<>=!"

func parseTerm(text string) (term, error) {
	start := strings.IndexAny(text, operatorRunes)
	if start < 0 {
		return term{}, errors.New("it has no operator (=, !=, <, <=, > or >=)")
	}
	name, rest := text[:start], text[start:]
	value := strings.TrimLeft(rest, operatorRunes)
	operator := strings.TrimSuffix(rest, value)
	t := term{text: text, property: strings.ToLower(name), holds: operators[operator]}
	if t.holds == nil {
		return term{}, fmt.Errorf("%s is not one of the operators =, !=, <, <=, > and >=", request.Quote(operator))
	}
	if value == "" {
		return term{}, errors.New("it has no value")
	}
	var err error
	switch t.property {
	case cuda, driver, arch:
		t.version, err = parseVersion(value)
	case brand:
		if t.brand = value; operator != "=" && operator != "!=" {
			err = errors.New("a brand is compared by = and != only")
		}
	default:
		err = fmt.Errorf("%s is not one of the properties cuda, driver, arch and brand", request.Quote(name))
	}
	return t, err
}

// version is a version without trailing zeros: 12.0 is 12.
type version []uint64

// parseVersion reads digits and dots, beginning with a digit. Consecutive dots count as one, as in
// NVIDIA's stack.
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
