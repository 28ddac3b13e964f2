package install

import (
	"fmt"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/toolkit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// Report describes what an installation or a removal changes.
type Report struct {
	DryRun  bool   `json:"dry_run"`
	Handler string `json:"handler,omitempty"`
	// Changed is true if the daemon's configuration changes, or anything else that the daemon reads
	// when it starts.
	Changed bool `json:"changed"`
	// Written and Removed are all files that change.
	Written []string        `json:"written"`
	Removed []string        `json:"removed"`
	Diff    string          `json:"diff"`
	Notes   []string        `json:"notes"`
	Restart string          `json:"restart"`
	Toolkit *toolkit.Report `json:"toolkit,omitempty"`
}

// CarryOut makes the changes of a plan, unless this is a dry run, and prints the notes and the
// difference. patch(1) ignores the notes.
func (i Installer) CarryOut(plan runtimeclass.Plan, report *toolkit.Report) error {
	if !i.DryRun {
		if err := plan.Apply(); err != nil {
			return err
		}
	}
	r := Report{
		DryRun: i.DryRun, Handler: plan.Handler, Changed: plan.Changed(),
		Written: plan.Written(), Removed: plan.Removed(), Diff: plan.Diff(), Notes: append([]string{}, plan.Notes...), Toolkit: report,
	}
	if r.Changed {
		r.Restart = plan.Restart.String()
	}
	if i.JSON {
		return term.JSON(i.Out, r)
	}
	i.print(r, plan.Restart)
	return nil
}

func (i Installer) print(r Report, restart runtimeclass.Restart) {
	would := ""
	if r.DryRun {
		would = "would "
	}
	if r.Toolkit != nil {
		r.Toolkit.Print(term.New(i.Out))
	}
	for _, n := range r.Notes {
		term.New(i.Out).Field("", 0, term.Plain, n)
	}
	for _, p := range r.Written {
		fmt.Fprintln(i.Out, would+"write", p)
	}
	for _, p := range r.Removed {
		fmt.Fprintln(i.Out, would+"remove", p)
	}
	fmt.Fprint(i.Out, r.Diff)
	switch {
	case !r.Changed:
		fmt.Fprintln(i.Out, "the configuration stays as it is")
	case r.Restart == "":
		fmt.Fprintln(i.Out, "nothing has to be restarted: the daemon has not been started yet")
	case !i.Restart:
		term.New(i.Out).Field("", 0, term.Plain, fmt.Sprintf("not restarted: run `%s` when it suits; %s", r.Restart, restart.Containers()))
	}
}
