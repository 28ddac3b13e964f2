package bounded

import (
	"io"
	"strings"
	"testing"
)

func TestNoMoreIsKeptThanTheBound(t *testing.T) {
	b := Buffer{Most: 5}
	for _, tc := range []struct {
		write, kept string
		tooLong     bool
	}{{"abc", "abc", false}, {"de", "abcde", false}, {"f", "abcde", true}, {"", "abcde", true}} {
		if n, err := b.Write([]byte(tc.write)); n != len(tc.write) || err != nil {
			t.Errorf("writing %q: %d, %v", tc.write, n, err)
		}
		if string(b.Kept) != tc.kept || b.TooLong != tc.tooLong {
			t.Errorf("after %q: kept %q, too long %t", tc.write, b.Kept, b.TooLong)
		}
	}
	c := Buffer{Most: 5}
	if _, err := io.Copy(&c, strings.NewReader(strings.Repeat("x", 1<<20))); err != nil || len(c.Kept) > 5 || !c.TooLong {
		t.Errorf("copied: %v, %d bytes", err, len(c.Kept))
	}
}

func TestTheFirstLineIsTheComplaint(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "\n\n": "", "prog: it fails\nmore\n": "it fails", "\nother: it fails": "other: it fails",
		strings.Repeat("x", 2000): strings.Repeat("x", 1024),
	} {
		b := Buffer{Most: 1 << 20, Kept: []byte(text)}
		if got := b.FirstLine("prog"); got != want {
			t.Errorf("of %.40q: %.40q, want %.40q", text, got, want)
		}
	}
}
