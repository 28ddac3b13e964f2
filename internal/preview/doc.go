// Package preview plans containers that do not exist, with the same steps as the shim: for the
// flags of other engines, for CDI, and for an operator who asks what the shim would do.
//
//	p := preview.Planner{Config: load, Ask: ask}
//	container, err := p.Examine(preview.Spec(env))
//	plan, err := p.Resolve(container, "")
//
// It carries out no plan.
package preview
