package main

import (
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// Names of the cases that are referred to.
const (
	caseNone  = "no GPU"
	caseOne   = "one GPU"
	caseAgain = "one GPU, task made again"
	caseAll   = "all GPUs"
	caseLarge = "one GPU, large image"
	caseCold  = "one GPU, cold view"
)

// burstSize is how many containers are started at once.
const burstSize = 64

// Budgets that are not a ratio of two containers' times.
const (
	budgetBinary  = 10_500_000 // bytes
	budgetAnonKiB = 0.8 * 1024 // more than the stock shim's
	budgetBurst   = 0.97       // of the stock shim's containers a second, at least
	budgetLast    = 1.10       // of the 10th container's time
)

// setup is what the cases are made from.
type setup struct {
	gpus int
	// partitioned is how many of the GPUs have MIG devices, and mig how many those are.
	partitioned, mig int
	// small, middle and large are references of images: without a C library, with
	// one, and with 5,000 libraries; "" where there is none.
	small, middle, large string
	peers                []Variant
}

// cases are the kinds of containers that are compared.
func (s setup) cases(o options) []Case {
	one := []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"}
	all := []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"}
	plain := func(image string) Variant {
		return Variant{Name: stock, image: image, runtime: testenv.StockRuntime, gpus: -1}
	}
	gpu := func(image string, env []string, gpus int) Variant {
		return Variant{Name: ours, image: image, runtime: testenv.DefaultRuntime, env: env, gpus: gpus}
	}
	twice := plain(s.small)
	twice.Name = stockAgain
	// runc makes the nodes in any case, which on a small host takes as long as all of our own
	// steps: there we compare with the stock shim with the same nodes.
	against, budgetOne, budgetAll := bare, 1.20, 1.25
	if o.real {
		against, budgetOne, budgetAll = stock, 1.15, 1.15
	}
	every := gpu(s.middle, all, s.gpus-s.partitioned)
	every.mig = s.mig
	out := []Case{
		{
			Name: caseNone, Against: twice.Name,
			Variants: []Variant{plain(s.small), gpu(s.small, nil, -1), twice},
		},
		{
			Name: caseOne, Against: against, Budget: budgetOne,
			Variants: append([]Variant{plain(s.middle), gpu(s.middle, one, 1)}, s.peers...),
		},
		{
			Name: caseAll, Against: against, Budget: budgetAll,
			Variants: []Variant{plain(s.middle), every},
		},
		{
			Name: caseAgain, Against: stock, Budget: budgetOne,
			Variants: []Variant{again(plain(s.middle)), again(gpu(s.middle, one, 1))},
		},
	}
	if s.large != "" {
		out = append(out, Case{
			Name: caseLarge, AddedTo: caseOne, BudgetAdded: 5,
			Variants: []Variant{plain(s.large), gpu(s.large, one, 1)},
		})
	}
	cold := gpu(s.middle, one, 1)
	cold.cold = true
	out = append(out, Case{
		Name: caseCold, AddedTo: caseOne, BudgetAdded: 100,
		Variants: []Variant{cold},
	})
	for i := range out {
		if o.before != "" {
			v := variant(out, out[i].Name, ours)
			v.Name, v.runtime = before, o.before
			out[i].Variants = append(out[i].Variants, v)
		}
	}
	return out
}

// again returns a variant of a container that has had a task before.
func again(v Variant) Variant {
	v.again = true
	return v
}

// variant finds a variant of a case.
func variant(cases []Case, name, runtime string) Variant {
	for _, c := range cases {
		if i := slices.IndexFunc(c.Variants, func(v Variant) bool { return v.Name == runtime }); c.Name == name && i >= 0 {
			return c.Variants[i]
		}
	}
	panic("no variant " + runtime + " of " + name)
}
