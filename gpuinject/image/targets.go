package image

import (
	"errors"
	"path"

	"golang.org/x/sys/unix"
)

// Targets answers what Root.Target answers, for many names of a root that nobody
// changes meanwhile: each directory above them is looked up once.
type Targets struct {
	root   *Root
	places map[string]place
}

// place is where a name leads, and whether anything is there.
type place struct {
	at    string
	there bool
}

// Targets begins to look names up.
func (r *Root) Targets() *Targets {
	return &Targets{root: r, places: map[string]place{"/": {"/", true}}}
}

// Of is Root.Target of name.
func (t *Targets) Of(name string) string { return t.place(path.Clean("/" + name)).at }

// There tells whether name, links followed, is in the root.
func (t *Targets) There(name string) bool { return t.place(path.Clean("/" + name)).there }

func (t *Targets) place(name string) place {
	if p, ok := t.places[name]; ok {
		return p
	}
	p := t.find(name)
	t.places[name] = p
	return p
}

func (t *Targets) find(name string) place {
	above := t.place(path.Dir(name))
	// No link is in the way to at, nor is at one unless the last component is.
	at := path.Join(above.at, path.Base(name))
	if !above.there {
		return place{at, false}
	}
	kind, err := t.root.kind(at, unix.O_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return place{at, false}
	case err == nil && kind != unix.S_IFLNK:
		return place{at, true}
	}
	real, err := t.root.Canonical(name)
	if err != nil {
		return place{t.root.Target(name), false}
	}
	return place{real, true}
}
