package main

import (
	"strings"
	"testing"
)

const page = "| Threat | Answer |\n|---|---|\n| T01 a link at `/x` | I2 |\n| T02 b | I3 |\n| T03 c | - |\n| T04 d | - |\n"

func TestTable(t *testing.T) {
	text, err := table(page, strings.NewReader(`
{"Action":"run","Package":"p","Test":"TestT01T02Both"}
{"Action":"pass","Package":"p","Test":"TestT01T02Both/T01_part_of_it","Elapsed":1}
{"Action":"pass","Package":"p","Test":"TestT01T02Both","Elapsed":1.5}
{"Action":"pass","Package":"p","Test":"TestMany/T02_another,_not_T03","Elapsed":0.25}
{"Action":"output","Package":"p","Test":"TestMany/T02_another,_not_T03","Output":"    x_test.go:1: stock shim: refused\n"}
{"Action":"output","Package":"p","Test":"TestMany/T03_c","Output":"why\n"}
{"Action":"fail","Package":"p","Test":"TestMany/T03_c","Elapsed":2}
{"Action":"skip","Package":"q","Test":"TestMany/T04_d","Elapsed":0}
`))
	const want = `why
T01  ok           1 tests    1.5s  stock: -                     a link at /x
T02  ok           2 tests    1.8s  stock: 0 started, 1 refused  b
T03  FAIL         1 tests    2.0s  stock: -                     c
T04  NOT TESTED   1 tests    0.0s  stock: -                     d
`
	if text != want || err == nil {
		t.Errorf("%v\n%s\nwant\n%s", err, text, want)
	}
	passed := `{"Action":"pass","Package":"p","Test":"TestT01T02T03T04All"}`
	if text, err := table(page, strings.NewReader(passed)); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
	if text, err := table(page, strings.NewReader(strings.Replace(passed, "T04", "", 1))); err == nil || !strings.Contains(text, "T04  NO RESULT") {
		t.Errorf("%v\n%s", err, text)
	}
	if _, err := table(page, strings.NewReader("FAIL\n")); err == nil {
		t.Error("text is no input")
	}
}
