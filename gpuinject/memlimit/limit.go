package memlimit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// Names of the configuration's keys, for messages.
const (
	KeyDefault = "container.memory-limit"
	KeyMax     = "policy.max-memory-limit"
)

// Limit is the memory of a GPU that a container may use, in bytes.
type Limit struct {
	UUID string `json:"uuid"`
	// Request is reserved for the container; 0 is nothing. Limit is what it may use at most; 0 is no
	// limit.
	Request uint64 `json:"request,omitempty"`
	Limit   uint64 `json:"limit,omitempty"`
	// From names what asks for it.
	From string `json:"from,omitempty"`
}

// String returns the limit for people: "limit 8192 MiB, request 4096 MiB".
func (l Limit) String() string {
	var parts []string
	if l.Limit != 0 {
		parts = append(parts, fmt.Sprintf("limit %d MiB", l.Limit/MiB))
	}
	if l.Request != 0 {
		parts = append(parts, fmt.Sprintf("request %d MiB", l.Request/MiB))
	}
	if parts == nil {
		return "no limit"
	}
	return strings.Join(parts, ", ")
}

// Rules are the operator's.
type Rules struct {
	// Default applies to a container that asks for nothing, and Max bounds every container.
	Default, Max Amounts
	// OnlyLower is true if the environment may come from an image that may ask for nothing: then it
	// only lowers what the annotations or the default say.
	OnlyLower bool
}

// pair is a request and a limit on one GPU. Without a limit it is {0, None}.
type pair struct{ request, limit uint64 }

// on returns the amount for the GPU with this place and UUID.
func (list Amounts) on(place int, uuid string) (bytes uint64, ok bool) {
	for _, a := range list {
		switch {
		case a.GPU == strconv.Itoa(place) || strings.EqualFold(a.GPU, uuid):
			return a.Bytes, true
		case a.GPU == "":
			bytes, ok = a.Bytes, true
		}
	}
	return bytes, ok
}

// on returns what the wish says about a GPU. A limit alone is the request too, as NVIDIA defines it.
func (w Wish) on(place int, uuid string) (p pair, ok bool, err error) {
	limit, limited := w.Limit.on(place, uuid)
	request, requested := w.Request.on(place, uuid)
	if !limited {
		limit = None
	}
	if !requested && limited {
		request = limit
	}
	if request == None {
		request = 0
	}
	switch {
	case limit == 0:
		return p, false, verdict.Invalid("%q is 0, which leaves no memory on a GPU: leave it out, or say \"none\"", w.LimitFrom)
	case request > limit:
		return p, false, verdict.Invalid("%q asks for %d MiB, more than the %d MiB of %q", w.RequestFrom, request/MiB, limit/MiB, w.LimitFrom)
	}
	return pair{request, limit}, limited || requested, nil
}

// check returns an error if the wish names a GPU twice, or one that is not among uuids.
func (w Wish) check(uuids []string) error {
	for _, l := range []struct {
		list Amounts
		from string
	}{{w.Limit, w.LimitFrom}, {w.Request, w.RequestFrom}} {
		seen := map[int]bool{}
		for _, a := range l.list {
			if a.GPU == "" {
				continue
			}
			i := slices.IndexFunc(uuids, func(uuid string) bool { return strings.EqualFold(uuid, a.GPU) })
			if n, err := strconv.Atoi(a.GPU); err == nil && n < len(uuids) {
				i = n
			}
			switch {
			case i < 0:
				return verdict.Invalid("%q: %.256q is not one of the container's %d GPUs: name each by its number in the container, from 0, or by its UUID", l.from, a.GPU, len(uuids))
			case seen[i]:
				return verdict.Invalid("%q has two amounts for GPU %.256q", l.from, a.GPU)
			}
			seen[i] = true
		}
	}
	return nil
}

// Decide returns the limits of a container with these GPUs, in the container's order. GPUs without a
// limit are left out.
func Decide(a Asked, r Rules, uuids []string) (limits []Limit, log verdict.Log, err error) {
	if a.Err != nil {
		return nil, log, verdict.Invalid("%w", a.Err)
	}
	for _, w := range []Wish{a.Annotations, a.Environment} {
		if err := w.check(uuids); err != nil {
			return nil, log, err
		}
	}
	lowers := r.OnlyLower && !a.Environment.Empty()
	if !a.Annotations.Empty() && !lowers {
		for _, name := range a.Environment.names() {
			log.Decide(name, "not followed", "annotations go before it")
		}
	}
	raises := false
	for i, uuid := range uuids {
		l, raised, err := decide(a, r, i, uuid)
		if err != nil {
			return nil, log, err
		}
		raises = raises || raised
		if l.Limit != 0 || l.Request != 0 {
			limits = append(limits, l)
		}
	}
	if raises {
		log.Ignore(strings.Join(a.Environment.names(), " and "), "in Kubernetes it may be the image's, so it only lowers what an annotation or "+KeyDefault+" says")
	}
	return limits, log, nil
}

// decide decides about one GPU. raised is true if the environment asks for more than it may.
func decide(a Asked, r Rules, place int, uuid string) (l Limit, raised bool, err error) {
	fallback := Wish{Limit: r.Default, LimitFrom: KeyDefault}
	base, from, asked := pair{0, None}, "", false
	sources := []Wish{a.Annotations, a.Environment, fallback}
	if r.OnlyLower {
		sources = []Wish{a.Annotations, fallback}
	}
	for i, w := range sources {
		p, ok, err := w.on(place, uuid)
		if err != nil {
			return l, false, err
		}
		if ok {
			base, from, asked = p, w.names()[0], i < len(sources)-1
			break
		}
	}
	if r.OnlyLower {
		lower, raises, err := a.Environment.lower(base, place, uuid)
		if err != nil {
			return l, false, err
		}
		if raised = raises; lower != base {
			base, from = lower, a.Environment.names()[0]
		}
	}
	if bound, ok := r.Max.on(place, uuid); ok && bound < base.limit {
		most := base.limit
		if most == None {
			most = base.request
		}
		if asked && most > bound {
			return l, raised, verdict.Denied("%q asks for %d MiB, more than the %d MiB of %s", from, most/MiB, bound/MiB, KeyMax)
		}
		base, from = pair{min(base.request, bound), bound}, KeyMax
	}
	return newLimit(uuid, base, from), raised, nil
}

// lower returns base, lowered to what the wish says about a GPU. raises is true if the wish asks for
// more. A limit that is followed, but not as a request, is not worth a warning.
func (w Wish) lower(base pair, place int, uuid string) (p pair, raises bool, err error) {
	p, ok, err := w.on(place, uuid)
	if err != nil || !ok {
		return base, false, err
	}
	raises = p.limit > base.limit && p.limit != None || len(w.Request) > 0 && p.request > base.request
	limit := min(p.limit, base.limit)
	return pair{min(p.request, base.request, limit), limit}, raises, nil
}

func newLimit(uuid string, p pair, from string) Limit {
	l := Limit{UUID: uuid, Request: p.request, Limit: p.limit, From: from}
	if p.limit == None {
		l.Limit = 0
	}
	return l
}

// Change returns the limits after an update by w of a container with these GPUs and the limits now,
// one for each GPU that w is about. A request alone leaves the limit as it is. bounds are the highest.
func Change(w Wish, bounds Amounts, uuids []string, now []Limit) (limits []Limit, err error) {
	if err := w.check(uuids); err != nil {
		return nil, err
	}
	for i, uuid := range uuids {
		_, limited := w.Limit.on(i, uuid)
		_, requested := w.Request.on(i, uuid)
		if !limited && !requested {
			continue
		}
		wish := w
		for _, old := range now {
			if old.UUID == uuid && old.Limit != 0 && !limited {
				wish.Limit, wish.LimitFrom = Amounts{{Bytes: old.Limit}}, old.From
			}
		}
		l, _, err := decide(Asked{Annotations: wish}, Rules{Max: bounds}, i, uuid)
		if err != nil {
			return nil, err
		}
		limits = append(limits, l)
	}
	return limits, nil
}
