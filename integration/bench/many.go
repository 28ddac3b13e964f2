package main

import "context"

// manySize is how many containers run at the same time, and around how many of them are measured.
const (
	manySize = 200
	around   = 10
)

// Many is create + start in milliseconds, of the tenth container and those around it, of the last
// of manySize, and of the stock shim's containers beside all of them.
type Many struct {
	Tenth  []float64 `json:"tenth"`
	Last   []float64 `json:"last"`
	Beside []float64 `json:"beside"`
}

// many starts manySize containers one after another, and then plain ones.
func (b *bench) many(ctx context.Context, plain, v Variant) (m Many, err error) {
	var running []*task
	for i := range manySize {
		t, err := b.started(ctx, v)
		if err != nil {
			return m, err
		}
		running = append(running, t)
		took := milliseconds(t.create + t.start)
		if i >= around/2 && i < around/2+around {
			m.Tenth = append(m.Tenth, took)
		}
		if i >= manySize-around {
			m.Last = append(m.Last, took)
		}
	}
	for range around {
		t, err := b.started(ctx, plain)
		if err != nil {
			return m, err
		}
		running = append(running, t)
		m.Beside = append(m.Beside, milliseconds(t.create+t.start))
	}
	for _, t := range running {
		if err := t.remove(ctx); err != nil {
			return m, err
		}
	}
	return m, nil
}
