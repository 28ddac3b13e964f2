// Command table prints the attacks of docs/threat-model.md with the results of their tests:
//
//	go test -json ./... | go run ./integration/attacks/table docs/threat-model.md
//
// It fails if a test of an attack failed, or if an attack has no result. The output of tests that
// failed is printed as well.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go test -json PACKAGES | table docs/threat-model.md")
		os.Exit(2)
	}
	page, err := os.ReadFile(os.Args[1])
	var text string
	if err == nil {
		text, err = table(string(page), os.Stdin)
	}
	fmt.Print(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// event is one line of `go test -json` (go doc test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// result combines the results of all tests of an attack with what the stock shim did with the same
// containers.
type result struct {
	passed, failed, skipped int
	started, refused        int
	seconds                 float64
}

func (r result) String() string {
	word := "ok"
	switch {
	case r.failed > 0:
		word = "FAIL"
	case r.passed == 0 && r.skipped > 0:
		word = "NOT TESTED"
	case r.passed == 0:
		word = "NO RESULT"
	}
	stock := "-"
	if r.started+r.refused > 0 {
		stock = fmt.Sprintf("%d started, %d refused", r.started, r.refused)
	}
	return fmt.Sprintf("%-10s %3d tests %6.1fs  stock: %-20s", word, r.passed+r.failed+r.skipped, r.seconds, stock)
}

var (
	row    = regexp.MustCompile(`(?m)^\| (T\d\d) (.*?) \|`)
	number = regexp.MustCompile(`T\d\d`)
	stock  = regexp.MustCompile(`: stock shim: (started|refused)\n$`)
	// A test's name is TestT21T22Hooks…, a subtest's "T21 T22 hooks …", whose blanks test2json has
	// as underscores.
	named = regexp.MustCompile(`^(?:Test((?:T\d\d)+)[A-Z]|((?:T\d\d_)+))`)
)

// table returns the table of the attacks of a page, after the output of tests that failed.
func table(page string, events io.Reader) (text string, err error) {
	results, output := map[string]result{}, map[string]string{}
	broken := false
	for d := json.NewDecoder(events); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return text, fmt.Errorf("the input is not that of go test -json: %w", err)
		}
		id := e.Package + " " + e.Test
		output[id] += e.Output
		if m := stock.FindStringSubmatch(e.Output); m != nil {
			for _, n := range attacksOf(e.Test) {
				results[n] = results[n].withStock(m[1])
			}
		}
		if e.Action != "pass" && e.Action != "fail" && e.Action != "skip" {
			continue
		}
		if e.Action == "fail" {
			broken = true
			text += output[id]
		}
		delete(output, id)
		for _, n := range attacksOf(e.Test) {
			results[n] = results[n].with(e)
		}
	}
	for _, m := range row.FindAllStringSubmatch(page, -1) {
		r := results[m[1]]
		broken = broken || r.passed+r.failed+r.skipped == 0
		text += fmt.Sprintf("%s  %v  %s\n", m[1], r, strings.ReplaceAll(m[2], "`", ""))
	}
	if broken {
		err = errors.New("a test failed, or an attack has no result")
	}
	return text, err
}

// with adds the result of one test.
func (r result) with(e event) result {
	switch e.Action {
	case "pass":
		r.passed++
	case "fail":
		r.failed++
	default:
		r.skipped++
	}
	r.seconds += e.Elapsed
	return r
}

// withStock adds what the stock shim did with one container.
func (r result) withStock(did string) result {
	if did == "started" {
		r.started++
	} else {
		r.refused++
	}
	return r
}

// attacksOf returns the attacks in the name of a test or subtest, without those in the name of a
// test around it, whose time includes this one's.
func attacksOf(test string) (numbers []string) {
	parts := strings.Split(test, "/")
	around := strings.Join(parts[:len(parts)-1], "/")
	for _, n := range number.FindAllString(named.FindString(parts[len(parts)-1]), -1) {
		if !number.MatchString(around) || !strings.Contains(around, n) {
			numbers = append(numbers, n)
		}
	}
	return numbers
}
