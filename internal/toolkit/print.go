package toolkit

import (
	"fmt"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

// Print shows what becomes of each option.
func (r Report) Print(o *term.Output) {
	styles := map[string]term.Style{Carried: term.Green, Attention: term.Yellow, None: term.Faint}
	o.Field("", 0, term.Plain, fmt.Sprintf("%s, for %s:", r.From, r.To))
	for _, p := range r.Options {
		text := p.Key + " = " + p.Value
		if p.To != "" {
			text += ", here " + p.To
		}
		if p.Why != "" {
			text += ": " + p.Why
		}
		o.Field(p.State, 18, styles[p.State], text)
	}
	for _, n := range r.Notes {
		o.Field("note:", 6, term.Cyan, n)
	}
}
