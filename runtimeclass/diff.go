package runtimeclass

import (
	"bytes"
	"fmt"
	"strings"
)

// context is the number of unchanged lines around a change.
const context = 3

// maxDiffCells bounds the table of the line comparison; beyond it the changed part is
// shown as removed and added.
const maxDiffCells = 16 << 20

// edit is one line of a comparison: ' ', '-' or '+'.
type edit struct {
	kind byte
	line string
}

// unifiedDiff compares two texts in the form that `patch` reads. nil means that the
// file does not exist.
func unifiedDiff(name string, before, after []byte) string {
	if bytes.Equal(before, after) && (before == nil) == (after == nil) {
		return ""
	}
	edits := compare(lines(before), lines(after))
	var b strings.Builder
	from, to := name, name
	if before == nil {
		from = "/dev/null"
	}
	if after == nil {
		to = "/dev/null"
	}
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", from, to)
	for start := 0; start < len(edits); {
		first := start
		for first < len(edits) && edits[first].kind == ' ' {
			first++
		}
		if first == len(edits) {
			break
		}
		// The hunk ends where more than two contexts of unchanged lines follow.
		end, same := first, 0
		for i := first; i < len(edits) && same <= 2*context; i++ {
			if edits[i].kind == ' ' {
				same++
				continue
			}
			end, same = i+1, 0
		}
		writeHunk(&b, edits, max(start, first-context), min(len(edits), end+context))
		start = min(len(edits), end+context)
	}
	return b.String()
}

func writeHunk(b *strings.Builder, edits []edit, from, to int) {
	var oldLine, newLine, oldCount, newCount int
	for i, e := range edits[:to] {
		if e.kind != '+' {
			if i < from {
				oldLine++
			} else {
				oldCount++
			}
		}
		if e.kind != '-' {
			if i < from {
				newLine++
			} else {
				newCount++
			}
		}
	}
	// An empty range is named by the line before it.
	if oldCount > 0 {
		oldLine++
	}
	if newCount > 0 {
		newLine++
	}
	fmt.Fprintf(b, "@@ -%d,%d +%d,%d @@\n", oldLine, oldCount, newLine, newCount)
	for _, e := range edits[from:to] {
		b.WriteByte(e.kind)
		b.WriteString(e.line)
		if !strings.HasSuffix(e.line, "\n") {
			b.WriteString("\n\\ No newline at end of file\n")
		}
	}
}

// lines splits a text into lines with their ends.
func lines(text []byte) []string {
	var out []string
	for l := range strings.Lines(string(text)) {
		out = append(out, l)
	}
	return out
}

// compare finds a longest common subsequence between what differs at neither end.
func compare(a, b []string) []edit {
	var head, tail []edit
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		head = append(head, edit{' ', a[0]})
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		tail = append([]edit{{' ', a[len(a)-1]}}, tail...)
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	if (len(a)+1)*(len(b)+1) > maxDiffCells {
		for _, l := range a {
			head = append(head, edit{'-', l})
		}
		for _, l := range b {
			head = append(head, edit{'+', l})
		}
		return append(head, tail...)
	}
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			head = append(head, edit{' ', a[i]})
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || common[i+1][j] >= common[i][j+1]):
			head = append(head, edit{'-', a[i]})
			i++
		default:
			head = append(head, edit{'+', b[j]})
			j++
		}
	}
	return append(head, tail...)
}
